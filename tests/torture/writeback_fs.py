"""A file system that loses unsynced data when the power fails.

Everything is in memory, twice: as programs see it, and as the disk holds it. Between the two is the
ordered list of writes not yet covered by an fsync. The content of a file becomes durable by fsync
of the file, a name by fsync of its directory. `fail(mode)` is the power failure: the disk's view,
plus the unsynced writes that the mode lets through, becomes the only view.

Runs in its own process: `python -m tests.torture.writeback_fs MOUNTPOINT [RECORD]`. Commands on
standard input (`fail MODE SEED`) are answered on standard output. With RECORD every operation is
also written there, one JSON value per line, with marks (`mark N`) in between, so that `Replay` can
bring a disk to any moment of the run. The power fails only after the programs that wrote are dead,
so the thread that reads the commands does not race with FUSE calls.
"""

from __future__ import annotations

import base64
import errno
import json
import random
import stat
import sys
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any, TextIO

import mfusepy  # type: ignore[import-untyped]

PAGE, SECTOR = 4096, 512


class Mode(Enum):
    DROP = "drop"
    """No unsynced data survives."""
    PAGES = "pages"
    """A random half of the dirty pages survives."""
    TEAR = "tear"
    """Writes survive up to one, which is torn at a sector."""
    NAMES = "names"
    """All content survives, but no changes of names since the last fsync of their directory."""


@dataclass(slots=True, eq=False)
class File:
    number: int
    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    is_directory: bool = False
    changed: float = field(default_factory=time.time)


@dataclass(slots=True)
class Write:
    file: File
    offset: int
    data: bytes
    """Empty data truncates or extends the file to `offset`."""

    def apply(self, content: bytearray) -> None:
        if not self.data:
            _resize(content, self.offset)
            return
        end = self.offset + len(self.data)
        if len(content) < end:
            _resize(content, end)
        content[self.offset : end] = self.data

    def pages(self) -> list[Write]:
        if not self.data:
            return [self]
        parts, at = [], 0
        while at < len(self.data):
            size = PAGE - (self.offset + at) % PAGE
            parts.append(Write(self.file, self.offset + at, self.data[at : at + size]))
            at += size
        return parts


class Disk:
    """The two views and the writes between them; independent of FUSE."""

    def __init__(self) -> None:
        self._numbers = count(1)
        root = File(next(self._numbers), is_directory=True)
        self.names: dict[str, File] = {"/": root}
        self.durable_names: dict[str, File] = {"/": root}
        self.unsynced: list[Write] = []

    def make(self, path: str, is_directory: bool = False) -> File:
        file = self.names[path] = File(next(self._numbers), is_directory=is_directory)
        return file

    def write(self, file: File, offset: int, data: bytes) -> None:
        change = Write(file, offset, data)
        change.apply(file.seen)
        file.changed = time.time()
        self.unsynced.append(change)

    def sync(self, file: File) -> None:
        file.durable[:] = file.seen
        self.unsynced = [write for write in self.unsynced if write.file is not file]

    def sync_names(self, directory: str) -> None:
        inside = {p: f for p, f in self.names.items() if _parent(p) == directory or p == directory}
        other_names = {p: f for p, f in self.durable_names.items() if _parent(p) != directory}
        self.durable_names = {**other_names, **inside}

    def copy(self) -> Disk:
        """A second disk in the same state."""
        other = Disk()
        files: dict[int, File] = {}

        def twin(file: File) -> File:
            if file.number not in files:
                files[file.number] = File(
                    file.number, file.seen[:], file.durable[:], file.is_directory, file.changed
                )
            return files[file.number]

        other.names = {path: twin(file) for path, file in self.names.items()}
        other.durable_names = {path: twin(file) for path, file in self.durable_names.items()}
        other.unsynced = [
            Write(twin(write.file), write.offset, write.data) for write in self.unsynced
        ]
        return other

    def remove(self, path: str) -> None:
        del self.names[path]

    def rename(self, old: str, new: str) -> None:
        self.names[new] = self.names.pop(old)

    def fail(self, mode: Mode, rng: random.Random) -> None:
        """Fail and restore the power."""
        survivors = self._survivors(mode, rng)
        for write in survivors:
            write.apply(write.file.durable)
        if mode in (Mode.DROP, Mode.NAMES) or rng.random() < 0.5:
            self.names = dict(self.durable_names)
        self.durable_names = dict(self.names)
        for file in self.names.values():
            file.seen[:] = file.durable
        self.unsynced = []

    def _survivors(self, mode: Mode, rng: random.Random) -> list[Write]:
        if mode is Mode.DROP:
            return []
        if mode is Mode.NAMES:
            return self.unsynced
        if mode is Mode.PAGES:
            pages = [page for write in self.unsynced for page in write.pages()]
            return [page for page in pages if rng.random() < 0.5]
        if not self.unsynced:
            return []
        last = rng.randrange(len(self.unsynced))
        torn = self.unsynced[last]
        cut = rng.randrange(0, len(torn.data) + 1, SECTOR) if torn.data else 0
        rest = [Write(torn.file, torn.offset, torn.data[:cut])] if cut else []
        return [*self.unsynced[:last], *rest]


class Recorder(Disk):
    """A disk that records every operation."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._out = file
        self._lock = threading.Lock()  # marks arrive on another thread

    def note(self, *step: object) -> None:
        line = json.dumps(step) + "\n"
        with self._lock:
            self._out.write(line)

    def make(self, path: str, is_directory: bool = False) -> File:
        file = super().make(path, is_directory)
        self.note("make", path, is_directory)
        return file

    def write(self, file: File, offset: int, data: bytes) -> None:
        super().write(file, offset, data)
        self.note("write", file.number, offset, base64.b64encode(data).decode())

    def sync(self, file: File) -> None:
        super().sync(file)
        self.note("sync", file.number)

    def sync_names(self, directory: str) -> None:
        super().sync_names(directory)
        self.note("sync_names", directory)

    def remove(self, path: str) -> None:
        super().remove(path)
        self.note("remove", path)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.note("rename", old, new)


class Replay:
    """Applies recorded steps to a new disk."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.mark = 0
        self._files = {1: self.disk.names["/"]}

    def step(self, recorded: list[Any]) -> None:
        name, *rest = recorded
        if name == "make":
            file = self.disk.make(*rest)
            self._files[file.number] = file
        elif name == "write":
            self.disk.write(self._files[rest[0]], rest[1], base64.b64decode(rest[2]))
        elif name == "sync":
            self.disk.sync(self._files[rest[0]])
        elif name == "mark":
            self.mark = rest[0]
        else:
            getattr(self.disk, name)(*rest)


class WriteBack(mfusepy.Operations):
    """The FUSE operations, one at a time."""

    use_ns = True

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._open: dict[int, File] = {}
        self._handles = count(1)

    def _file(self, path: str, handle: int | None = None) -> File:
        file = self._open.get(handle) if handle else None
        file = file or self.disk.names.get(path)
        if file is None:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return file

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        file = self._file(path, fh)
        kind = stat.S_IFDIR | 0o755 if file.is_directory else stat.S_IFREG | 0o644
        when = int(file.changed * 1e9)
        return {
            "st_mode": kind, "st_nlink": 1, "st_size": len(file.seen), "st_ino": file.number,
            "st_mtime": when, "st_ctime": when, "st_atime": when,
        }  # fmt: skip

    def readdir(self, path: str, fh: int) -> list[str]:
        inside = [p for p in self.disk.names if p != "/" and _parent(p) == path]
        return [".", "..", *(p.rpartition("/")[2] for p in inside)]

    def mkdir(self, path: str, mode: int) -> int:
        self.disk.make(path, is_directory=True)
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return self._handle(self.disk.make(path))

    def open(self, path: str, flags: int) -> int:
        return self._handle(self._file(path))

    def _handle(self, file: File) -> int:
        handle = next(self._handles)
        self._open[handle] = file
        return handle

    def release(self, path: str, fh: int) -> int:
        self._open.pop(fh, None)
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._file(path, fh).seen[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self.disk.write(self._file(path, fh), offset, data)
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self.disk.write(self._file(path, fh), length, b"")
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self.disk.sync(self._file(path, fh))
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self.disk.sync_names(path)
        return 0

    def unlink(self, path: str) -> int:
        self._file(path)
        self.disk.remove(path)
        return 0

    rmdir = unlink

    def rename(self, old: str, new: str, flags: int = 0) -> int:
        self._file(old)
        self.disk.rename(old, new)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        return {"f_bsize": PAGE, "f_frsize": PAGE, "f_blocks": 1 << 20, "f_bfree": 1 << 20,
                "f_bavail": 1 << 20, "f_files": 1 << 20, "f_ffree": 1 << 20}  # fmt: skip

    def chmod(self, path: str, mode: int) -> int:
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        return 0

    def utimens(self, path: str, times: Any = None) -> int:
        return 0


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _resize(content: bytearray, size: int) -> None:
    if len(content) > size:
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _run_commands(operations: WriteBack) -> None:
    for line in sys.stdin:
        name, *rest = line.split()
        if name == "mark":
            if isinstance(operations.disk, Recorder):
                operations.disk.note("mark", int(rest[0]))
            continue
        mode, seed = rest
        unsynced = len(operations.disk.unsynced)
        operations.disk.fail(Mode(mode), random.Random(int(seed)))
        sys.stdout.write(f"failed {unsynced}\n")
        sys.stdout.flush()


def main() -> None:
    record = open(sys.argv[2], "w", encoding="ascii") if len(sys.argv) > 2 else None  # noqa: SIM115
    operations = WriteBack(Recorder(record) if record else Disk())
    threading.Thread(target=_run_commands, args=(operations,), daemon=True).start()
    mfusepy.FUSE(
        operations, sys.argv[1], foreground=True, nothreads=True, fsname="leveret-torture",
        hard_remove=True, attr_timeout=0, entry_timeout=0, negative_timeout=0,
    )  # fmt: skip
    if record:
        record.close()


if __name__ == "__main__":
    main()
