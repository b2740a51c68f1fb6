"""What atheris runs: any octets, on a wire before and after the login; only protocol errors escape.

`python -m tests.torture.security.atheris_harness -max_total_time=60`
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import atheris

with atheris.instrument_imports():
    from amqp_server.codec import commands
    from amqp_server.wire import ConnectionState, Wire, WireChannel
    from leveret.model import properties, tables

from leveret.model.errors import BrokerError, ProtocolError
from tests.semantics.test_fragments import closing, opening
from tests.support.brokers import Target
from tests.torture.security.decoding import FRAME_MAX, may_take, opened, peak, take, take_aside

SLOW_SECONDS = 0.05
"""For a portion of an input, and for each 8 KiB of all of it: the loop takes turns in between."""
LARGE = 8192
WEIGHED_EVERY = 100
NEXT_STATE = {
    commands.Connection.StartOk: ConnectionState.LOGGING_IN,
    commands.Connection.TuneOk: ConnectionState.AWAIT_OPEN,
    commands.Connection.Open: ConnectionState.OPEN,
    commands.Connection.Close: ConnectionState.CLOSED,
    commands.Connection.CloseOk: ConnectionState.CLOSED,
}


class Sink:
    """Takes what the wire hands over, and looks at it as the meaning floor would."""

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
            self.wire.state = NEXT_STATE.get(type(method), self.wire.state)
            if isinstance(method, commands.Connection.TuneOk):
                self.wire.frame_limit = FRAME_MAX
        elif isinstance(method, commands.Channel.Open):
            self.wire.channels[channel] = WireChannel()
        elif isinstance(method, commands.Channel.Close):
            self.wire.channels.pop(channel, None)

    def on_publish(self, channel: int, publish: Any, messages: Any) -> None:
        publish.effort = publish.effort or 1
        for message in messages:
            _ = message.scan.needs_care, message.headers()
            properties.edit_headers(message.properties, frozenset({"BCC"}), {"x": 1})

    def on_ack(self, channel: int, tags: Any, multiple: bool) -> None:
        pass

    def on_refused_content(self, channel: int, error: BrokerError) -> None:
        if self.wire is not None:
            self.wire.close_channel(self.wire.channels[channel])


class TimedWire(Wire):
    slowest = 0.0
    """Seconds of processor time that a portion took."""

    def receive(self, data: bytes) -> None:
        began = time.thread_time()
        try:
            super().receive(data)
        finally:
            self.slowest = max(self.slowest, time.thread_time() - began)


class Inputs:
    """Each is timed, and some are weighed, which takes longer."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, data: bytes) -> None:
        self._count += 1
        _must_be_fast(data)
        if self._count % WEIGHED_EVERY == 0:
            most = peak(decode, data)
            assert most <= may_take(len(data)), f"{most} octets of memory for {len(data)}"


def _must_be_fast(data: bytes) -> None:
    """A pause of the machine is not the decoder's: what is slow thrice is slow."""
    took = portion = 0.0
    for _ in range(3):
        began = time.thread_time()
        portion = decode(data)
        took = time.thread_time() - began
        if portion < SLOW_SECONDS and took < SLOW_SECONDS * max(1.0, len(data) / LARGE):
            return
    raise AssertionError(f"{took:.3f} s for {len(data)} octets, {portion:.3f} s for a portion")


def decode(data: bytes) -> float:
    """Its first octet says whether somebody has logged in, and whether the second half waits.

    Returns how long the slowest portion took.
    """
    sink, first = Sink(), data[:1]
    wire = sink.wire = TimedWire(sink, 1024 * 1024)
    if first > b"\x40":
        opened(wire)
        data = data[1:]
    half = len(data) // 2
    take(wire, data[:half])
    if first and first[0] & 1:
        take_aside(wire, [data[half : half + half // 2], data[half + half // 2 :]])
    else:
        take(wire, data[half:])
    while wire.state is ConnectionState.LOGGING_IN:
        wire.state = ConnectionState.AWAIT_TUNE_OK
        take(wire, b"")
    with contextlib.suppress(ProtocolError):
        tables.decode_table(data)
    return wire.slowest


def main() -> None:
    inputs = Inputs()
    atheris.Setup(sys.argv, inputs)
    inputs(opening(Target("127.0.0.1", 0)) + closing())
    atheris.Fuzz()


if __name__ == "__main__":
    main()
