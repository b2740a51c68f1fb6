"""A virtual environment with only a wheel and the requirements that the wheel declares.

The requirements are linked from this interpreter's packages. A library that is missing from the
declaration is missing here as after a download, but nothing is downloaded.
"""

from __future__ import annotations

import email
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def declared(wheel: Path, *extras: str) -> list[Requirement]:
    """The wheel's requirements, with those of these extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    return _applicable(
        [Requirement(text) for text in metadata.get_all("Requires-Dist", [])], {"", *extras}
    )


def _applicable(requirements: list[Requirement], extras: set[str]) -> list[Requirement]:
    return [
        requirement
        for requirement in requirements
        if requirement.marker is None
        or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def closure(wheel: Path, *extras: str, also: tuple[str, ...] = ()) -> dict[str, Distribution]:
    """All distributions that an installation of the wheel needs, by name.

    `also` names further distributions, which come with their own requirements.
    """
    distributions: dict[str, Distribution] = {}
    pending = [*declared(wheel, *extras), *map(Requirement, also)]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name not in distributions:
            distributions[name] = distribution(requirement.name)
            inner = [Requirement(text) for text in distributions[name].requires or ()]
            pending += _applicable(inner, requirement.extras or {""})
    return distributions


class CleanEnvironment:
    def __init__(self, folder: Path, wheel: Path, *extras: str, also: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        venv.create(folder, with_pip=False, symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "lib" / version / "site-packages"
        for requirement in closure(wheel, *extras, also=also).values():
            self._link(requirement)
        self._install(wheel)

    def _link(self, installed: Distribution) -> None:
        """Link the first part of each path: a package, a module, or its metadata."""
        for top in {path.parts[0] for path in installed.files or () if path.parts[0] != ".."}:
            link, real = self.packages / top, Path(str(installed.locate_file(top)))
            if not link.exists() and real.exists() and top != "__pycache__":
                link.symlink_to(real)

    def _install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"]
        options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *options, str(wheel)], check=True)

    def run(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment outside the checkout."""
        return subprocess.run(
            [self.bin / words[0], *words[1:]],
            cwd=cwd or self.folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
