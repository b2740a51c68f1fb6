"""The data directory: created, writable, complete, and used by one process at a time.

The locks are advisory locks on the directory and on `leveret.lock`, held through open files: they
end with the process, however that ends, so a crash leaves nothing to clean up. The directory is
locked because a file can be deleted; the file, because some file systems cannot lock directories.
"""

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from leveret.model.store import DataDirectoryInUse, StoreError

LOCK_NAME: Final = "leveret.lock"
DATABASE_NAME: Final = "leveret.db"
WAL_NAME: Final = DATABASE_NAME + "-wal"
LOGS_NAME: Final = "logs"
NEW_SUFFIX: Final = ".new"
"""Of a database that is not complete yet."""
SCHEMA_FILE: Final = Path(__file__).with_name("schema.sql")


def sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def advice(path: Path) -> str:
    """What to do about a database that cannot be opened."""
    return (
        "restore the directory from a backup, or copy what is readable to a new one with"
        f" `leveret salvage {path} NEW`"
    )


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


class StoppedDirectory:
    """A directory that no broker uses, and none can use until `release`; nothing is written."""

    def __init__(self, path: Path) -> None:
        self._handles = [os.open(path, os.O_RDONLY | os.O_DIRECTORY)]
        with suppress(FileNotFoundError):
            self._handles.append(os.open(path / LOCK_NAME, os.O_RDONLY))
        try:
            for handle in self._handles:
                _lock(handle)
        except BlockingIOError as error:
            self.release()
            raise DataDirectoryInUse(
                f"data directory {path} is in use by a running broker; stop it first"
            ) from error

    def release(self) -> None:
        while self._handles:
            os.close(self._handles.pop())


def _lock(handle: int) -> None:
    """Raises BlockingIOError if another process holds the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        # Some network file systems cannot lock directories.
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise


class DataDirectory:
    """Locked from construction until `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handles: list[int] = []
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handles = [os.open(path, os.O_RDONLY | os.O_DIRECTORY)]
            lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            self._handles.append(lock)
        except OSError as error:
            self.release()
            # Not `path.exists()`, which raises if the parent directory is not accessible.
            is_file = os.path.exists(path) and not os.path.isdir(path)
            why = "it is a file" if is_file else error.strerror
            raise StoreError(f"cannot use data directory {path}: {why}") from error
        try:
            for handle in self._handles:
                _lock(handle)
        except OSError as error:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            self.release()
            raise DataDirectoryInUse(
                f"data directory {path} is in use by another process"
                + (f" (pid {holder})" if holder else "")
                + "; stop it, or choose another directory"
            ) from error
        with suppress(OSError):  # only a hint for the error above: a full disk must not matter
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def sync(self) -> None:
        """Make the names of new files, and of the directory itself, survive a power failure."""
        for path in (self.path, self.path.parent):
            sync_file(path)

    def require_database(self) -> None:
        """Refuse a directory that has lost its database; a new one has neither logs nor a file."""
        database = self.path / DATABASE_NAME
        is_missing = not database.exists()
        if not is_missing and database.stat().st_size:
            return
        others = [name for name in (LOGS_NAME, WAL_NAME) if _has_content(self.path / name)]
        if is_missing and not others:
            return
        what = "there is no leveret.db" if is_missing else "leveret.db is empty"
        beside = f", but there is {' and '.join(others)}" if others else ""
        begin_anew = [DATABASE_NAME] * (not is_missing) + others
        raise StoreError(
            f"{what} in {self.path}{beside}: restore leveret.db from a backup, copy what is"
            f" readable to a new directory with `leveret salvage {self.path} NEW`, or move"
            f" {' and '.join(begin_anew)} away to begin with an empty broker"
        )

    def release(self) -> None:
        while self._handles:
            os.close(self._handles.pop())

    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize
