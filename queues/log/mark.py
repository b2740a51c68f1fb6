"""Two small files beside the segments: who the log is, and how far it is known to be on disk.

`log.id` is written once, synced with the first record, and can be learned again from any segment.
`committed` is rewritten in place after every sync of the log and never synced itself: so it is
never ahead of the data, a crash leaves it at worst behind or torn, and its CRC-32C says which.  It
lets recovery look at the unsynced end only, keeps offsets that were confirmed from being given out
twice, and tells readers in other processes how far they may read.
"""

import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

from leveret.model.checksum import checksum
from queues.log.batch import HEADER_SIZE, log_id_of
from queues.log.segment import log_path

_IDENT = struct.Struct("<4sIQ")
_IDENT_MAGIC = b"LVI1"
_MARK = struct.Struct("<4sIQQQqq")
_MARK_MAGIC = b"LVM1"
_CRC_SIZE = 4
NO_SNAPSHOT = -1


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything below `position` of `segment`, and below `next_offset`, has been synced.

    `snapshot` is where in that segment the state of the producers begins, or NO_SNAPSHOT.
    """

    segment: int
    position: int
    next_offset: int
    last_time_ms: int
    snapshot: int


def encode_mark(mark: Mark) -> bytes:
    head = _MARK.pack(
        _MARK_MAGIC,
        1,
        mark.segment,
        mark.position,
        mark.next_offset,
        mark.last_time_ms,
        mark.snapshot,
    )
    return head + checksum(head).to_bytes(_CRC_SIZE, "little")


def decode_mark(data: bytes) -> Mark | None:
    head, crc = data[: _MARK.size], data[_MARK.size : _MARK.size + _CRC_SIZE]
    if len(crc) < _CRC_SIZE or checksum(head) != int.from_bytes(crc, "little"):
        return None
    magic, version, *fields = _MARK.unpack(head)
    return Mark(*fields) if magic == _MARK_MAGIC and version == 1 else None


def load_mark(directory: Path) -> Mark | None:
    try:
        return decode_mark((directory / "committed").read_bytes())
    except OSError:
        return None


def save_mark(directory: Path, mark: Mark) -> None:
    """Put a mark back to where recovery has cut the log; on disk when this returns."""
    fd = os.open(directory / "committed", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        os.pwrite(fd, encode_mark(mark), 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def load_log_id(directory: Path, bases: list[int]) -> int | None:
    """The id of the log: from its file, else from the first segment that still tells."""
    try:
        data = (directory / "log.id").read_bytes()
    except OSError:
        data = b""
    head, crc = data[: _IDENT.size], data[_IDENT.size : _IDENT.size + _CRC_SIZE]
    if len(crc) == _CRC_SIZE and checksum(head) == int.from_bytes(crc, "little"):
        ident: int = _IDENT.unpack(head)[2]
        return ident
    for base in bases:
        with open(log_path(directory, base), "rb") as file:
            learned = log_id_of(file.read(HEADER_SIZE))
        if learned is not None:
            return learned
    return None


def new_log_id() -> int:
    return secrets.randbits(64)


def create_log_id(directory: Path, log_id: int | None = None) -> int:
    """Write `log.id`, with a new random id unless one is given."""
    ident = new_log_id() if log_id is None else log_id
    aside = write_log_id(directory, ident, "log.id.tmp")
    sync_file(aside)
    os.replace(aside, directory / "log.id")
    return ident


def write_log_id(directory: Path, log_id: int, name: str = "log.id") -> Path:
    head = _IDENT.pack(_IDENT_MAGIC, 1, log_id)
    path = directory / name
    path.write_bytes(head + checksum(head).to_bytes(_CRC_SIZE, "little"))
    return path


def sync_log_id(directory: Path) -> None:
    sync_file(directory / "log.id")


def sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
