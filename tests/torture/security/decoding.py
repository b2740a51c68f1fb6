"""A wire, driven as the broker drives it: portion by portion, and on after what it refuses."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Sequence

from amqp_server.wire import ConnectionState, Wire, WireChannel
from leveret.model.errors import ProtocolError

MEGABYTE = 1 << 20
FRAME_MAX = 131072


def opened(wire: Wire) -> Wire:
    """Past its handshake, with channel 1."""
    wire.state = ConnectionState.OPEN
    wire.frame_limit = FRAME_MAX
    wire.channels[1] = WireChannel()
    return wire


def take(wire: Wire, data: bytes) -> list[ProtocolError]:
    """All of it, in as many portions as it takes; what was refused."""
    refused = list[ProtocolError]()
    is_new = True
    while is_new or wire.has_more:
        try:
            wire.receive(data if is_new else b"")
            is_new = False
        except ProtocolError as error:  # anything else is a fault of ours
            refused.append(error)
            _close(wire)
            is_new, data = True, b""  # a close may follow
    return refused


def take_aside(wire: Wire, parts: Sequence[bytes]) -> list[ProtocolError]:
    """The same, when all but the first had to wait."""
    refused = list[ProtocolError]()
    for part in parts:
        wire.set_aside(part)
    if wire.has_more:
        refused += take(wire, b"")
    return refused


def _close(wire: Wire) -> None:
    """As the broker does, before it hears the rest out."""
    if wire.state not in (ConnectionState.AWAIT_HEADER, ConnectionState.CLOSED):
        wire.forget_contents()
        wire.state = ConnectionState.CLOSING


def peak(call: Callable[[bytes], object], data: bytes) -> int:
    """The most octets it held at a time."""
    tracemalloc.start()
    call(data)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def may_take(octets: int) -> int:
    return 4 * octets + MEGABYTE


def nested_tables(levels: int) -> bytes:
    """A table as deep as that, itself among them."""
    fields = b""
    for _ in range(levels - 1):
        fields = b"\x01aF" + struct.pack(">I", len(fields)) + fields
    return struct.pack(">I", len(fields)) + fields


def nested_arrays(levels: int) -> bytes:
    """A table of arrays in arrays."""
    items = b""
    for _ in range(levels - 1):
        items = b"A" + struct.pack(">I", len(items)) + items
    return struct.pack(">I", len(items) + 2) + b"\x01a" + items
