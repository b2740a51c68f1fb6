"""Binary formats on disk: arrays of ids and sizes, and the checksums of rows.

Pure functions. Arrays are little-endian on every machine. Checksums are CRC-32C. A message has
two: one of its head (id, size, exchange, routing key, properties) and one of its body, so that the
body can be dropped while the head stays verifiable. An event has one checksum of all its columns.
"""

import struct
import sys
from array import array
from collections.abc import Iterable

from leveret.model.checksum import checksum, extend

ID_SIZE = 8
_MASK = 0xFFFFFFFF
_EVENT_HEAD = struct.Struct("<QHQQI")
_SWAP = sys.byteorder == "big"

body_checksum = checksum


def pack_ids(ids: Iterable[int]) -> bytes:
    return _pack(array("Q", ids))


def pack_sizes(sizes: Iterable[int]) -> bytes:
    return _pack(array("I", sizes))


def unpack_ids(data: bytes) -> "array[int]":
    return _unpack(array("Q"), data)


def unpack_sizes(data: bytes) -> "array[int]":
    return _unpack(array("I"), data)


def _pack(numbers: "array[int]") -> bytes:
    if _SWAP:
        numbers.byteswap()
    return numbers.tobytes()


def _unpack(numbers: "array[int]", data: bytes) -> "array[int]":
    numbers.frombytes(data)
    if _SWAP:
        numbers.byteswap()
    return numbers


def route_checksum(exchange: bytes, routing_key: bytes) -> int:
    """The part of the head that many messages share; the length separates the two names."""
    return extend(extend(len(exchange), exchange), routing_key)


def head_checksum(route: int, message_id: int, size: int, properties: bytes) -> int:
    """The numbers are part of the seed: a change of any single one changes the checksum."""
    return extend((route + message_id * 31 + size * 1021 + len(properties)) & _MASK, properties)


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
