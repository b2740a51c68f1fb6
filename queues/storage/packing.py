"""Binary formats on disk: arrays of ids and sizes, and the checksums of rows.

Pure functions. Arrays are little-endian on every machine. Checksums are CRC-32C. An event has one
checksum of all its columns. The format of content is in `packs`.
"""

import struct
import sys
from array import array
from collections.abc import Iterable

from leveret.model.checksum import checksum, extend

ID_SIZE = 8
_EVENT_HEAD = struct.Struct("<QHQQI")
_SWAP = sys.byteorder == "big"


def pack_ids(ids: Iterable[int]) -> bytes:
    numbers = array("Q", ids)
    if _SWAP:
        numbers.byteswap()
    return numbers.tobytes()


def pack_sizes(sizes: Iterable[int]) -> bytes:
    numbers = array("I", sizes)
    if _SWAP:
        numbers.byteswap()
    return numbers.tobytes()


def unpack_ids(data: bytes) -> "array[int]":
    return _unpack(array("Q"), data)


def unpack_sizes(data: bytes) -> "array[int]":
    return _unpack(array("I"), data)


def _unpack(numbers: "array[int]", data: bytes) -> "array[int]":
    numbers.frombytes(data)
    if _SWAP:
        numbers.byteswap()
    return numbers


def event_checksum(
    time_ms: int,
    kind: int,
    queue_id: int,
    actor: int,
    detail: str | None,
    count: int,
    ids: bytes,
    sizes: bytes | None,
) -> int:
    crc = checksum(_EVENT_HEAD.pack(time_ms, kind, queue_id, actor, count))
    if detail:
        crc = extend(crc, detail.encode())
    crc = extend(crc, ids)
    return crc if sizes is None else extend(crc, sizes)
