"""The data directory: made, writable, and ours alone.

The lock is an advisory one on `leveret.lock`, held by an open file: it goes with the process,
however it ends, so a crash leaves nothing to clean up.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from leveret.model.store import DataDirectoryInUse, StoreError

LOCK_NAME = "leveret.lock"
DATABASE_NAME = "leveret.db"


class DataDirectory:
    """Held from construction until `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock: int | None = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            # Not `path.exists()`, which fails itself where one may not look.
            is_file = os.path.exists(path) and not os.path.isdir(path)
            why = "it is a file" if is_file else error.strerror
            raise StoreError(f"cannot use data directory {path}: {why}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            self.release()
            raise DataDirectoryInUse(
                f"data directory {path} is in use by another process"
                + (f" (pid {holder})" if holder else "")
                + "; stop it, or choose another directory"
            ) from error
        with suppress(OSError):  # only a hint for the error above; a full disk must not matter
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def sync(self) -> None:
        """Make the names of new files, and of the directory itself, survive a power loss."""
        for path in (self.path, self.path.parent):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize
