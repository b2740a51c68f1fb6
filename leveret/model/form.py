"""Which form of the hot-path modules runs: compiled, or as Python source.

A platform wheel has compiled modules beside their sources, and Python prefers them. In a clone,
`make compile` puts them into `build/compiled/`, in a folder named after a digest of all sources
that they depend on. They are used only if the digest of the present sources is the same, so a
change of a source file is never hidden by an older compiled form.

The environment variable LEVERET_COMPILED forces a form: 0 uses the sources, 1 refuses to start
without compiled modules. `install` runs when the package is imported, before any of the modules.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

VARIABLE = "LEVERET_COMPILED"
COMPILED, PURE = "compiled", "pure Python"
PACKAGE = Path(__file__).absolute().parents[1]
BUILDS = Path("build") / "compiled"
SUFFIX = EXTENSION_SUFFIXES[0]
"""Names the version of Python and the platform, too."""
_SAMPLE = Path("amqp_server") / f"wire{SUFFIX}"
_SOURCES = (
    "leveret/*.py", "leveret/model/**/*.py", "leveret/broker/**/*.py", "amqp_server/**/*.py",
    "bindings/**/*.py", "exchange/**/*.py", "queues/**/*.py", "tools/compile_modules.py",
)  # fmt: skip
"""What compiled modules depend on: mypyc trusts the types and constants of other modules."""

_state = {"form": PURE}


def current() -> str:
    """`COMPILED` or `PURE`."""
    return _state["form"]


def install() -> None:
    """Choose the form for this process; raises ImportError if the forced one is missing."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "0", "1"):
        raise ImportError(f"{VARIABLE} is {wanted!r}; it must be 0, 1 or empty")
    is_in_wheel = (PACKAGE / _SAMPLE).exists()
    if wanted == "0":
        if is_in_wheel:
            sys.meta_path.insert(0, _SourceFinder())
        return
    build = None if is_in_wheel else maybe_build(PACKAGE.parent)
    if build is not None:
        sys.meta_path.insert(0, _BuildFinder(build))
    if build is not None or is_in_wheel:
        _state["form"] = COMPILED
    elif wanted == "1":
        raise ImportError(f"{VARIABLE} is 1, but there are no compiled modules of these sources")


def maybe_build(root: Path) -> Path | None:
    """The folder with compiled modules of exactly these sources, if there is one."""
    if not (root / BUILDS).is_dir():
        return None
    folder = build_folder(root)
    return folder if (folder / "leveret" / _SAMPLE).exists() else None


def build_folder(root: Path) -> Path:
    from hashlib import blake2b

    digest = blake2b(digest_size=16)
    for path in _source_files(root):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return root / BUILDS / digest.hexdigest()


def _source_files(root: Path) -> Iterator[Path]:
    for pattern in _SOURCES:
        yield from sorted(root.glob(pattern))


class _BuildFinder:
    """Finds modules in a folder of `build/compiled/`."""

    def __init__(self, folder: Path) -> None:
        self._modules: dict[str, str] = {}
        for path in folder.rglob(f"*{SUFFIX}"):
            name = str(path.relative_to(folder))[: -len(SUFFIX)].replace(os.sep, ".")
            self._modules[name] = str(path)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._modules.get(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))


class _SourceFinder:
    """Finds the sources of Leveret's modules, even if they are beside compiled ones."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("leveret."):
            return None
        for folder in path or ():
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name)
            if spec is not None:
                return spec
        return None
