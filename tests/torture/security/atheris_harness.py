"""The target of atheris: any bytes, before and after the login; only protocol errors may escape.

`python -m tests.torture.security.atheris_harness -max_total_time=60`
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import atheris

with atheris.instrument_imports():
    from leveret.amqp_server.codec import commands
    from leveret.amqp_server.wire import ConnectionEvent, ConnectionState, Wire
    from leveret.model import message as properties
    from leveret.model import tables

from leveret.model.errors import BrokerError, ProtocolError
from tests.semantics.test_fragments import closing, opening
from tests.support.brokers import Target
from tests.torture.security.decoding import (
    FRAME_MAX,
    max_memory,
    open_wire,
    peak,
    receive_all,
    receive_buffered,
)
from tests.unit.amqp_server.recorder import ChannelRecorder

SLOW_SECONDS = 0.05
"""Limit for one portion of an input, and for each 8 KiB of the whole input."""
LARGE = 8192
MEASURED_EVERY = 100
EVENTS = {
    commands.Connection.StartOk: ConnectionEvent.START_OK,
    commands.Connection.Open: ConnectionEvent.OPEN,
    commands.Connection.Close: ConnectionEvent.CLOSED,
    commands.Connection.CloseOk: ConnectionEvent.CLOSED,
}


class DecodingSink:
    """Reads what the wire decodes, like a connection of the broker."""

    def __init__(self) -> None:
        self.wire: Wire | None = None

    def on_header(self) -> None:
        pass

    def on_method(self, channel: int, method: Any, table: bytes) -> None:
        if table:
            tables.type_names(table)
        if self.wire is None:
            return
        if channel == 0:
            if isinstance(method, commands.Connection.TuneOk):
                self.wire.tune(FRAME_MAX)
            elif type(method) in EVENTS:
                self.wire.advance(EVENTS[type(method)])
        elif isinstance(method, commands.Channel.Open):
            self.wire.open_channel(channel, ChannelRecorder(self, channel))
        elif isinstance(method, commands.Channel.Close):
            self.wire.channels.pop(channel, None)

    def on_publish(self, channel: int, publish: Any, messages: Any) -> None:
        publish.effort = publish.effort or 1
        for message in messages:
            _ = message.scan.needs_validation, message.headers()
            properties.edit_headers(message.properties, frozenset({"BCC"}), {"x": 1})

    def on_ack(self, channel: int, tags: Any, multiple: bool) -> None:
        pass

    def on_refused_content(self, channel: int, error: BrokerError) -> None:
        if self.wire is not None:
            self.wire.begin_channel_close(channel)


class TimedWire(Wire):
    slowest = 0.0
    """CPU seconds of the slowest portion."""

    def receive(self, data: bytes) -> None:
        began = time.thread_time()
        try:
            super().receive(data)
        finally:
            self.slowest = max(self.slowest, time.thread_time() - began)


class MeasuredDecoder:
    """Measures the time of every input, and the memory of some, which takes longer."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, data: bytes) -> None:
        self._count += 1
        _check_speed(data)
        if self._count % MEASURED_EVERY == 0:
            peak_bytes = peak(decode, data)
            assert peak_bytes <= max_memory(len(data)), (
                f"{peak_bytes} bytes of memory for {len(data)}"
            )


def _check_speed(data: bytes) -> None:
    """Fail only if three tries are slow: a single one may be a pause of the machine."""
    took = portion = 0.0
    for _ in range(3):
        began = time.thread_time()
        portion = decode(data)
        took = time.thread_time() - began
        if portion < SLOW_SECONDS and took < SLOW_SECONDS * max(1.0, len(data) / LARGE):
            return
    raise AssertionError(f"{took:.3f} s for {len(data)} bytes, {portion:.3f} s for a portion")


def decode(data: bytes) -> float:
    """Decode an input; its first byte says whether the connection is logged in, and whether the
    second half is buffered.

    Returns the time of the slowest portion.
    """
    sink, first = DecodingSink(), data[:1]
    wire = sink.wire = TimedWire(sink, 1024 * 1024)
    if first > b"\x40":
        open_wire(wire)
        data = data[1:]
    half = len(data) // 2
    receive_all(wire, data[:half])
    if first and first[0] & 1:
        receive_buffered(wire, [data[half : half + half // 2], data[half + half // 2 :]])
    else:
        receive_all(wire, data[half:])
    while wire.state is ConnectionState.AUTHENTICATING:
        wire.advance(ConnectionEvent.AUTHENTICATED)
        receive_all(wire, b"")
    with contextlib.suppress(ProtocolError):
        tables.decode_table(data)
    return wire.slowest


def main() -> None:
    inputs = MeasuredDecoder()
    atheris.Setup(sys.argv, inputs)
    inputs(opening(Target("127.0.0.1", 0)) + closing())
    atheris.Fuzz()


if __name__ == "__main__":
    main()
