"""Drives a wire as the broker does: portion by portion, and on after refused input."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Sequence

from leveret.amqp_server.wire import ConnectionEvent, ConnectionState, Wire
from leveret.model.errors import ProtocolError
from tests.unit.amqp_server.recorder import ChannelRecorder, finish_handshake

MEGABYTE = 1 << 20
FRAME_MAX = 131072


def open_wire(wire: Wire) -> Wire:
    """Finish the handshake and open channel 1."""
    finish_handshake(wire, FRAME_MAX)
    wire.open_channel(1, ChannelRecorder(wire.sink, 1))
    return wire


def receive_all(wire: Wire, data: bytes) -> list[ProtocolError]:
    """Receive all data in portions; return the errors."""
    refused = list[ProtocolError]()
    is_new = True
    while is_new or wire.has_more:
        try:
            wire.receive(data if is_new else b"")
            is_new = False
        except ProtocolError as error:  # any other exception is a bug
            refused.append(error)
            _close(wire)
            is_new, data = True, b""  # a close may follow
    return refused


def receive_buffered(wire: Wire, parts: Sequence[bytes]) -> list[ProtocolError]:
    """Like `receive_all`, with all parts buffered first."""
    refused = list[ProtocolError]()
    for part in parts:
        wire.buffer(part)
    if wire.has_more:
        refused += receive_all(wire, b"")
    return refused


def _close(wire: Wire) -> None:
    """Send connection.close like the broker, which then discards the rest."""
    if wire.state not in (ConnectionState.AWAIT_HEADER, ConnectionState.CLOSED):
        wire.drop_contents()
        if wire.state is not ConnectionState.CLOSING:
            wire.advance(ConnectionEvent.CLOSE_SENT)


def peak(call: Callable[[bytes], object], data: bytes) -> int:
    """The peak of allocated bytes during the call."""
    tracemalloc.start()
    call(data)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak_bytes


def max_memory(size: int) -> int:
    return 4 * size + MEGABYTE


def nested_tables(levels: int) -> bytes:
    """Nested tables; the outermost is level 1."""
    fields = b""
    for _ in range(levels - 1):
        fields = b"\x01aF" + struct.pack(">I", len(fields)) + fields
    return struct.pack(">I", len(fields)) + fields


def nested_arrays(levels: int) -> bytes:
    """Nested arrays in a table."""
    items = b""
    for _ in range(levels - 1):
        items = b"A" + struct.pack(">I", len(items)) + items
    return struct.pack(">I", len(items) + 2) + b"\x01a" + items
