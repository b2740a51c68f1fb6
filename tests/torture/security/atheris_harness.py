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

from leveret.model.errors import BrokerError
from tests.semantics.test_fragments import closing, opening
from tests.support.brokers import Target

SLOW_SECONDS = 0.05


class Sink:
    """Takes what the wire hands over, and looks at it as the meaning floor would."""

    def __init__(self) -> None:
        self.wire: Wire | None = None

    def on_header(self) -> None:
        pass

    def on_method(self, channel: int, method: Any, table: bytes) -> None:
        if table:
            tables.type_names(table)
        if isinstance(method, commands.Channel.Open) and self.wire is not None:
            self.wire.channels[channel] = WireChannel()

    def on_publish(self, channel: int, publish: Any, messages: Any) -> None:
        for message in messages:
            _ = message.scan.needs_care, message.headers()
            properties.edit_headers(message.properties, frozenset({"BCC"}), {"x": 1})

    def on_ack(self, channel: int, tags: Any, multiple: bool) -> None:
        pass

    def on_refused_content(self, channel: int, error: BrokerError) -> None:
        pass


def one_input(data: bytes) -> None:
    """A pause of the machine is not the decoder's: what is slow thrice is slow."""
    for _ in range(3):
        began = time.thread_time()
        decode(data)
        if time.thread_time() - began < SLOW_SECONDS:
            return
    raise AssertionError(f"more than {SLOW_SECONDS} s for {len(data)} octets")


def decode(data: bytes) -> None:
    sink = Sink()
    wire = sink.wire = Wire(sink, 1024 * 1024)
    if data[:1] > b"\x40":
        wire.state = ConnectionState.OPEN
        wire.frame_limit = 131072
        wire.channels[1] = WireChannel()
        data = data[1:]
    half = len(data) // 2
    with contextlib.suppress(BrokerError):
        wire.receive(data[:half])
        wire.receive(data[half:])
    with contextlib.suppress(BrokerError):
        tables.decode_table(data)


def main() -> None:
    atheris.Setup(sys.argv, one_input)
    one_input(opening(Target("127.0.0.1", 0)) + closing())
    atheris.Fuzz()


if __name__ == "__main__":
    main()
