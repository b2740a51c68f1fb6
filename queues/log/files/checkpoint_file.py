"""Two small files beside the segments: the id of the log, and its checkpoint.

`log.id` is written once and not synced, because every batch repeats the id: a start restores the
file from a segment.
`committed` is the checkpoint, the end of the synced data. It is rewritten in place after every sync
and never synced itself. So it is never ahead of the data, a crash leaves it behind or torn at
worst, and its CRC-32C tells which. Because of it, recovery reads the unsynced end only, confirmed
offsets are never used twice, and readers in other processes know how far they may read.
"""

import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

from leveret.model.checksum import checksum
from leveret.queues.log.files.batch import HEADER_SIZE, log_id_of
from leveret.queues.log.files.segment import log_path

_IDENT = struct.Struct("<4sIQ")
_IDENT_MAGIC = b"LVI1"
_CHECKPOINT = struct.Struct("<4sIQQQqq")
_CHECKPOINT_MAGIC = b"LVM1"
_CRC_SIZE = 4
NO_SNAPSHOT = -1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything below `position` of `segment`, and below `next_offset`, is synced.

    `snapshot` is the position in that segment where the producer state starts, or NO_SNAPSHOT.
    """

    segment: int
    position: int
    next_offset: int
    last_time_ms: int
    snapshot: int


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    head = _CHECKPOINT.pack(
        _CHECKPOINT_MAGIC,
        1,
        checkpoint.segment,
        checkpoint.position,
        checkpoint.next_offset,
        checkpoint.last_time_ms,
        checkpoint.snapshot,
    )
    return head + checksum(head).to_bytes(_CRC_SIZE, "little")


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    head, crc = data[: _CHECKPOINT.size], data[_CHECKPOINT.size : _CHECKPOINT.size + _CRC_SIZE]
    if len(crc) < _CRC_SIZE or checksum(head) != int.from_bytes(crc, "little"):
        return None
    magic, version, *fields = _CHECKPOINT.unpack(head)
    return Checkpoint(*fields) if magic == _CHECKPOINT_MAGIC and version == 1 else None


def load_checkpoint(directory: Path) -> Checkpoint | None:
    try:
        return decode_checkpoint((directory / "committed").read_bytes())
    except OSError:
        return None


def open_checkpoint(directory: Path) -> int:
    return os.open(directory / "committed", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Move the checkpoint back to where recovery truncated the log; synced when this returns."""
    fd = open_checkpoint(directory)
    try:
        os.pwrite(fd, encode_checkpoint(checkpoint), 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def read_log_id(directory: Path) -> int | None:
    """The content of `log.id`; None if it is missing or torn."""
    try:
        data = (directory / "log.id").read_bytes()
    except OSError:
        return None
    head, crc = data[: _IDENT.size], data[_IDENT.size : _IDENT.size + _CRC_SIZE]
    if len(crc) != _CRC_SIZE or checksum(head) != int.from_bytes(crc, "little"):
        return None
    ident: int = _IDENT.unpack(head)[2]
    return ident


def load_log_id(directory: Path, bases: list[int]) -> int | None:
    """The id of the log: from its file, or else from the first segment with a valid header."""
    stored = read_log_id(directory)
    if stored is not None:
        return stored
    for base in bases:
        with open(log_path(directory, base), "rb") as file:
            log_id = log_id_of(file.read(HEADER_SIZE))
        if log_id is not None:
            return log_id
    return None


def new_log_id() -> int:
    return secrets.randbits(64)


def create_log_id(directory: Path, log_id: int | None = None) -> int:
    """Write `log.id` atomically, with a new random id unless one is given."""
    ident = new_log_id() if log_id is None else log_id
    temporary = write_log_id(directory, ident, "log.id.tmp")
    sync_file(temporary)
    os.replace(temporary, directory / "log.id")
    return ident


def write_log_id(directory: Path, log_id: int, name: str = "log.id") -> Path:
    head = _IDENT.pack(_IDENT_MAGIC, 1, log_id)
    path = directory / name
    path.write_bytes(head + checksum(head).to_bytes(_CRC_SIZE, "little"))
    return path


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
