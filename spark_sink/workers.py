"""How Spark starts its Python workers: with this interpreter, able to import Leveret, and quickly.

Spark puts its own archive of PySpark first in a worker's PYTHONPATH, and every process compiles
the modules of an archive again: half a second of CPU time for each of a dozen workers, more than
the rest of their start. Where PySpark is installed as a package (by pip), workers on this machine
are started by a shell script that removes the archive from the path, so that they import the
compiled modules of that package.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

from leveret.spark_sink.scripts import cache_directory, write_script


def _import_root() -> Path:
    """The folder that holds the package `leveret`, which workers need on their PYTHONPATH."""
    spec = importlib.util.find_spec("leveret")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).resolve().parents[1]


IMPORT_ROOT = _import_root()
_SCRIPT = """#!/bin/sh
rest=$PYTHONPATH: filtered=
while [ "$rest" ]; do
  part=${{rest%%:*}} rest=${{rest#*:}}
  case $part in {archives}/*.zip) ;; *) filtered=$filtered:$part ;; esac
done
PYTHONPATH=${{filtered#:}} exec {python} "$@"
"""
_CHECK = """
import importlib.util, sys
sys.exit(importlib.util.find_spec("pyspark").origin != sys.argv[1])
"""


def prepare_workers(*, local: bool) -> None:
    """Set the environment that the JVM passes to its workers."""
    os.environ["PYSPARK_PYTHON"] = str((maybe_worker_script() if local else None) or sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(IMPORT_ROOT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(IMPORT_ROOT), *filter(None, paths)])


def maybe_worker_script(directory: Path | None = None) -> Path | None:
    """The script; None if it is not needed, or does not import the installed PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or os.name != "posix":
        return None
    archives = Path(spec.origin).parent / "python" / "lib"
    if not (archives / "pyspark.zip").exists():
        return None
    names = {"archives": shlex.quote(str(archives)), "python": shlex.quote(sys.executable)}
    try:
        path = (directory or cache_directory()) / "python-worker"
        write_script(path, _SCRIPT.format(**names))
        variables = {**os.environ, "PYTHONPATH": f"{archives / 'pyspark.zip'}:{IMPORT_ROOT}"}
        check = [str(path), "-c", _CHECK, spec.origin]
        subprocess.run(check, env=variables, timeout=60, check=True)  # noqa: S603 (written above)
    except (
        OSError,
        RuntimeError,
        subprocess.SubprocessError,
    ):  # RuntimeError: the user has no home directory
        return None
    return path
