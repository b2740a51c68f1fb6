"""Shell scripts that wrap a program which Spark starts.

They are in the user's cache directory, one folder per Python environment, are replaced atomically,
and can be deleted at any time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zlib
from pathlib import Path


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "leveret" / f"python-{zlib.crc32(sys.prefix.encode()):08x}"


def write_script(path: Path, script: str) -> None:
    """Write an executable file, unless it has this content already."""
    if path.exists() and path.read_text() == script:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(script)
    os.chmod(file.name, 0o755)  # noqa: S103 (executable)
    os.replace(file.name, path)
