"""Figures of this process from the operating system, cheap enough for every request.

psutil is imported with the first figure, after the broker accepts connections: it takes 8 ms.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_UNLIMITED_FILES = 1 << 20


@cache
def _this_process() -> psutil.Process:
    import psutil

    return psutil.Process()


def resident_bytes() -> int:
    """Memory of the process (RSS)."""
    return int(_this_process().memory_info().rss)


def open_files() -> int:
    import psutil

    try:
        return int(_this_process().num_fds())
    except (AttributeError, psutil.Error):  # not on every system
        return 0


def disk_bytes() -> tuple[int, int]:
    """Bytes that the process has read from and written to disk."""
    import psutil

    try:
        counters = _this_process().io_counters()
    except (AttributeError, psutil.Error, OSError):  # not on every system
        return 0, 0
    return int(counters.read_bytes), int(counters.write_bytes)


def max_open_files() -> int:
    try:
        import resource
    except ImportError:  # not on every system
        return _UNLIMITED_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else _UNLIMITED_FILES


def free_disk_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free
