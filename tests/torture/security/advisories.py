"""R-48: which packages have known vulnerabilities, according to a copy of an advisory database.

The copy is a checkout of PyPA's advisory-database, or any directory with a `vulns` folder that has
a folder for each package with one OSV file for each advisory. ADVISORIES names it. Without network
access for pip-audit it is the only source, up to the date of the copy.

The packages installed here are checked, and the oldest versions that pyproject.toml allows, because
pip keeps an installed version that satisfies the requirement.
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
            return [
                f"there are no advisories in {self.folder}"
            ], "the copy of the advisories is empty"
        problems = [
            f"{name} {version} has {flaw}, and {state}"
            for releases, state in ((installed, "is installed"), (oldest, "is allowed"))
            for name, version in sorted(releases)
            for flaw in self.matching(name, version)
        ]
        known = sum(any(self._files(name)) for name, _ in installed)
        return problems, (
            f"{sum(1 for _ in self._files('*'))} advisories as of {self._day()}: {known} of "
            f"{len(installed)} installed packages and {len(oldest)} oldest versions allowed were "
            f"looked up, {len(problems)} are known to be vulnerable"
        )

    def matching(self, name: str, version: str) -> list[str]:
        """The advisories that apply to this version."""
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
        """The date of the newest advisory; parsing all as YAML would take minutes."""
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
    named = any(Version(listed) == version for listed in map(str, affected.get("versions", ())))
    return named or any(
        _is_within(part["events"], version)
        for part in affected.get("ranges", ())
        if part["type"] == "ECOSYSTEM"
    )


def _is_within(events: list[dict[str, Any]], version: Version) -> bool:
    """Whether the flaw was introduced at or before the version and not fixed since."""
    within = False
    for event in events:
        for kind, when in event.items():
            since = Version(str(when))
            if kind == "introduced" and since <= version:
                within = True
            elif (kind == "fixed" and since <= version) or (
                kind == "last_affected" and since < version
            ):
                within = False
    return within


def installed_here() -> set[Release]:
    return {
        (canonicalize_name(distribution.name), distribution.version)
        for distribution in distributions()
    }


FOR_OLDER_APPLICATIONS = frozenset({"starlette"})
"""Packages whose oldest allowed version has known flaws, because an application from a year ago may
have pinned it (docs/decisions/0021). The broker warns of it at start; the lock files have a newer
one, which is checked because it is installed."""


def oldest_allowed(pyproject: Path = ROOT / "pyproject.toml") -> set[Release]:
    declared = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    lines = chain(declared["dependencies"], *declared["optional-dependencies"].values())
    return {
        (canonicalize_name(requirement.name), bound.version.removesuffix(".*"))
        for requirement in map(Requirement, lines)
        if canonicalize_name(requirement.name) not in FOR_OLDER_APPLICATIONS
        for bound in requirement.specifier
        if bound.operator in (">=", "==", "~=")
    }
