"""How Spark starts its Python workers: from this interpreter, able to import us, and quickly.

Spark puts its own archive of PySpark before everything else in a worker's PYTHONPATH, and modules
of an archive are compiled anew by every process: half a second of processor time for each of a
dozen workers, more than all the rest of their start. Where PySpark is installed as a package (by
pip), workers on this machine are started by a shell script that leaves the archive out, so that
they import the same modules from that package, compiled already.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

from spark_sink.shims import cache, write_program

ROOT = Path(__file__).resolve().parents[1]
_SCRIPT = """#!/bin/sh
rest=$PYTHONPATH: kept=
while [ "$rest" ]; do
  part=${{rest%%:*}} rest=${{rest#*:}}
  case $part in {archives}/*.zip) ;; *) kept=$kept:$part ;; esac
done
PYTHONPATH=${{kept#:}} exec {python} "$@"
"""
_TRIAL = """
import importlib.util, sys
sys.exit(importlib.util.find_spec("pyspark").origin != sys.argv[1])
"""


def prepare_workers(*, local: bool) -> None:
    """Set the environment that the JVM hands to its workers."""
    os.environ["PYSPARK_PYTHON"] = str((maybe_shim() if local else None) or sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(ROOT) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, known)])


def maybe_shim(directory: Path | None = None) -> Path | None:
    """The script; None where it would be of no use, or does not start this very PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or os.name != "posix":
        return None
    archives = Path(spec.origin).parent / "python" / "lib"
    if not (archives / "pyspark.zip").exists():
        return None
    names = {"archives": shlex.quote(str(archives)), "python": shlex.quote(sys.executable)}
    try:
        path = (directory or cache()) / "python-worker"
        write_program(path, _SCRIPT.format(**names))
        variables = {**os.environ, "PYTHONPATH": f"{archives / 'pyspark.zip'}:{ROOT}"}
        trial = [str(path), "-c", _TRIAL, spec.origin]
        subprocess.run(trial, env=variables, timeout=60, check=True)  # noqa: S603 (written above)
    except (OSError, RuntimeError, subprocess.SubprocessError):  # one is a user without a home
        return None
    return path
