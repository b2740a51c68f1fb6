"""Compiles the hot-path modules with mypyc into build/compiled/, for `make run` and the wheel.

    python tools/compile_modules.py [--is-needed]

The result is in a folder named after a digest of the sources (leveret/model/form.py); a second call
with the same sources does nothing. `--is-needed` only returns 0 if there is something to compile
and a compiler, and 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).absolute().parents[1]
MODULES = (
    "amqp_server/channel.py",
    "amqp_server/codec.py",
    "amqp_server/consumer.py",
    "amqp_server/unacked_tags.py",
    "amqp_server/wire.py",
    "broker/runtime/commit_waiters.py",
    "broker/runtime/scheduler.py",
    "model/message.py",
    "model/run.py",
    "model/tables.py",
    "queues/classic/classic_queue.py",
    "queues/classic/limits.py",
    "queues/classic/ready.py",
    "queues/classic/round_robin.py",
    "queues/classic/unacked.py",
    "queues/delivery.py",
    "queues/entry.py",
    "queues/log/files/batch.py",
    "queues/storage/batch.py",
    "queues/storage/batch_builder.py",
    "queues/storage/packing.py",
    "queues/storage/packs.py",
)
"""Of the package `leveret`. Measured: what gains nothing is not here."""
GROUP = "leveret"
OPTIMISATION = "1"
"""Higher levels take twice as long to compile and gain nothing that can be measured."""

# Only the types of our own modules matter; reading those of large libraries takes a minute.
MYPY_CONFIG = """\
[mypy]
strict = true
explicit_package_bases = true
follow_imports = silent
ignore_missing_imports = true
mypy_path = {root}
cache_dir = {cache}
python_executable = {python}

[mypy-{skipped}]
follow_imports = skip
"""
SKIPPED = (
    "aiosqlite", "argon2", "cryptography", "fastapi", "httpx", "jinja2", "numpy", "orjson",
    "pandas", "prometheus_client", "psutil", "pyarrow", "pydantic", "pyspark", "re2", "rich",
    "sqlalchemy", "starlette", "typer", "uvicorn", "uvloop",
)  # fmt: skip


class NotPossible(Exception):
    """Something that compiling needs is missing."""


def form_of(root: Path) -> ModuleType:
    """leveret/model/form.py, loaded by path: importing the package would choose a form."""
    path = root / "leveret/model/form.py"
    spec = importlib.util.spec_from_file_location("leveret_form", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_compiler() -> None:
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise NotPossible(f"the C compiler {compiler} is not installed")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise NotPossible("the headers of Python are not installed")


def check_mypyc() -> None:
    for module in ("mypyc", "setuptools"):
        if importlib.util.find_spec(module) is None:
            raise NotPossible(f"{module} is not installed")


def is_needed(root: Path = ROOT) -> bool:
    """Whether these sources are not compiled yet, and a compiler is there."""
    try:
        check_compiler()
    except NotPossible:
        return False
    return form_of(root).maybe_build(root) is None


def compile_modules(root: Path = ROOT) -> Path:
    """Compile unless it was done for these sources; return the folder with the result."""
    form = form_of(root)
    existing: Path | None = form.maybe_build(root)
    if existing is not None:
        return existing
    check_compiler()
    check_mypyc()
    builds = root / form.BUILDS
    builds.mkdir(parents=True, exist_ok=True)
    with _locked(builds / "lock"):
        folder: Path = form.build_folder(root)
        if form.maybe_build(root) is None:
            _remove_old(builds)
            _build(root, builds, folder)
    if form.maybe_build(root) is None:
        raise NotPossible("the sources were changed meanwhile")
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_old(builds: Path) -> None:
    """Results for other sources, unless they are as young as a running broker's might be."""
    folders = [path for path in builds.iterdir() if path.is_dir() and path.name != "mypy"]
    for old in sorted(folders, key=lambda path: path.stat().st_mtime)[:-2]:
        shutil.rmtree(old, ignore_errors=True)


def _build(root: Path, builds: Path, folder: Path) -> None:
    """Compile into a temporary folder, which gets its name when it is complete."""
    with tempfile.TemporaryDirectory(prefix="tmp-", dir=builds) as name:
        work = Path(name)
        config = work / "mypy.ini"
        skipped = ",".join(f"{library}.*" for library in SKIPPED)
        values = {"root": root, "cache": builds / "mypy", "python": _python(root)}
        config.write_text(MYPY_CONFIG.format(skipped=skipped, **values))
        command = [sys.executable, str(root / "tools" / Path(__file__).name), "--into", str(work)]
        environment = {**os.environ, "PYTHONPATH": ""}
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"mypyc failed:\n{done.stdout}{done.stderr}")
        (work / "result").rename(folder)


def _python(root: Path) -> str:
    """An interpreter that has our dependencies, whose types matter."""
    project = root / ".venv" / "bin" / "python"
    return str(project) if project.exists() else sys.executable


def _run_mypyc(work: Path) -> None:
    """In a process of its own, because setuptools and mypyc read arguments and print."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    options = ["--config-file", str(work / "mypy.ini")]
    extensions = mypycify(
        [*options, *(f"leveret/{module}" for module in MODULES)],
        opt_level=OPTIMISATION,
        debug_level="0",
        group_name=GROUP,
        target_dir=str(work / "c"),
    )
    command = build_ext(Distribution({"name": GROUP, "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(work / "result"), str(work / "objects")
    command.ensure_finalized()
    command.run()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--is-needed", action="store_true")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.into is not None:
        _run_mypyc(options.into)
        return 0
    if options.is_needed:
        return 0 if is_needed() else 1
    try:
        folder = compile_modules()
    except (NotPossible, RuntimeError, OSError) as error:
        print(f"The hot path is not compiled: {error}", file=sys.stderr)
        return 1
    print(f"Compiled: {folder.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
