"""A virtual environment with a wheel and what the wheel declares to need, and nothing else.

What is needed is linked from this interpreter's own packages: that a library is missing from the
declaration is found as a download would find it, without one.
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


def declared(wheel: Path) -> list[Requirement]:
    """What the wheel says it needs without extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    return _needed([Requirement(text) for text in metadata.get_all("Requires-Dist", [])], {""})


def _needed(requirements: list[Requirement], extras: set[str]) -> list[Requirement]:
    return [
        one
        for one in requirements
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def closure(wheel: Path) -> dict[str, Distribution]:
    """All that installing it brings along, by name."""
    found: dict[str, Distribution] = {}
    left = declared(wheel)
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        if name not in found:
            found[name] = distribution(wanted.name)
            inner = [Requirement(text) for text in found[name].requires or ()]
            left += _needed(inner, wanted.extras or {""})
    return found


class CleanEnvironment:
    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        venv.create(folder, with_pip=False, symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "lib" / version / "site-packages"
        for one in closure(wheel).values():
            self._link(one)
        self._install(wheel)

    def _link(self, one: Distribution) -> None:
        """By the first part of each path: a package, a module, or its metadata."""
        for top in {path.parts[0] for path in one.files or () if path.parts[0] != ".."}:
            link, real = self.packages / top, Path(str(one.locate_file(top)))
            if not link.exists() and real.exists() and top != "__pycache__":
                link.symlink_to(real)

    def _install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"]
        options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *options, str(wheel)], check=True)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A program of this environment, away from the checkout."""
        return subprocess.run(
            [self.bin / words[0], *words[1:]],
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
