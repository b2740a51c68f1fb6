"""What the operating system knows about this process. Cheap enough for every request."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from pathlib import Path

from leveret.broker import Broker

PID = os.getpid()
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def most_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def processors() -> int:
    return os.cpu_count() or 1


def threads() -> int:
    return threading.active_count()


def disk_free(broker: Broker) -> int:
    where = Path.cwd() if broker.settings.memory else broker.settings.data_dir
    try:
        return shutil.disk_usage(where).free
    except OSError:
        return 0
