"""R-48: which packages are known to be vulnerable, by a copy of an advisory database.

The copy is a checkout of PyPA's advisory-database, or of anything else with a `vulns` folder that
has a folder for each package and in it a file in OSV's form for each advisory. ADVISORIES names it:
where pip-audit finds nobody to ask, it is all that can be found out, up to the day of the copy.

Judged are the packages that are installed here and, since pip keeps what is there while it will do,
the oldest versions that pyproject.toml allows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.brokers import ROOT

Release = tuple[str, str]
"""Name and version."""


@dataclass(frozen=True, slots=True)
class Advisories:
    folder: Path

    def judge(self, installed: set[Release], oldest: set[Release]) -> tuple[list[str], str]:
        if not any(self._files("*")):
            return [f"there are no advisories in {self.folder}"], "a copy of advisories is empty"
        problems = [
            f"{name} {version} has {flaw}, and {where}"
            for releases, where in ((installed, "is installed"), (oldest, "is allowed"))
            for name, version in sorted(releases)
            for flaw in self.about(name, version)
        ]
        known = sum(any(self._files(name)) for name, _ in installed)
        return problems, (
            f"{sum(1 for _ in self._files('*'))} advisories as of {self._day()}: {known} of "
            f"{len(installed)} installed packages and {len(oldest)} oldest versions allowed asked "
            f"about, {len(problems)} known to be vulnerable"
        )

    def about(self, name: str, version: str) -> list[str]:
        """The advisories that hold for this version."""
        return [
            advisory["id"]
            for advisory in map(_read, self._files(canonicalize_name(name)))
            if "withdrawn" not in advisory
            and any(
                _concerns(affected, Version(version))
                for affected in advisory["affected"]
                if canonicalize_name(affected["package"]["name"]) == canonicalize_name(name)
            )
        ]

    def _files(self, package: str) -> Iterator[Path]:
        return iter(sorted((self.folder / "vulns").glob(f"{package}/*.yaml")))

    def _day(self) -> str:
        """When the newest was published; reading them whole as YAML would take minutes."""
        lines = (
            line
            for path in self._files("*")
            for line in path.read_text(encoding="utf-8").splitlines()[:5]
            if line.startswith("published:")
        )
        return max((line.split()[1].strip("\"'")[:10] for line in lines), default="no day")


def _read(path: Path) -> dict[str, Any]:
    advisory: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return advisory


def _concerns(affected: dict[str, Any], version: Version) -> bool:
    named = any(Version(one) == version for one in map(str, affected.get("versions", ())))
    return named or any(
        _is_within(part["events"], version)
        for part in affected.get("ranges", ())
        if part["type"] == "ECOSYSTEM"
    )


def _is_within(events: list[dict[str, Any]], version: Version) -> bool:
    """Introduced at or before it, and since then neither fixed nor last there."""
    within = False
    for event in events:
        for what, when in event.items():
            since = Version(str(when))
            if what == "introduced" and since <= version:
                within = True
            elif (what == "fixed" and since <= version) or (
                what == "last_affected" and since < version
            ):
                within = False
    return within


def installed_here() -> set[Release]:
    return {(canonicalize_name(one.name), one.version) for one in distributions()}


def oldest_allowed(pyproject: Path = ROOT / "pyproject.toml") -> set[Release]:
    declared = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    lines = chain(declared["dependencies"], *declared["optional-dependencies"].values())
    return {
        (canonicalize_name(wanted.name), bound.version.removesuffix(".*"))
        for wanted in map(Requirement, lines)
        for bound in wanted.specifier
        if bound.operator in (">=", "==", "~=")
    }
