"""Runs the broker with input that is split into pieces: `python -m ... FILE SEED serve ...`.

Separate writes to a socket may be joined by the system, so the input is split where the broker
receives it: at random, or on some connections byte by byte. SIGUSR1 writes to the file how many
bytes arrived so far, and in how many pieces.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from leveret.amqp_server.transport import AmqpTransport

SIZES = (1, 2, 7, 8, 50, 300, 4096)
SINGLE_EVERY = 50
"""One connection in this many is split byte by byte."""


@dataclass(slots=True)
class SplitCounts:
    byte_count: int = 0
    pieces: int = 0
    single_bytes: int = 0
    single_pieces: int = 0

    @staticmethod
    def read(text: str) -> SplitCounts:
        return SplitCounts(*map(int, text.split()))

    def count(self, byte_count: int, is_single: bool) -> None:
        """Count one piece."""
        if is_single:
            self.single_bytes += byte_count
            self.single_pieces += 1
        else:
            self.byte_count += byte_count
            self.pieces += 1


class InputSplitter:
    """Splits the input of connections, determined by their number and the seed."""

    def __init__(self, seed: int) -> None:
        self.counts = SplitCounts()
        self._seed = seed
        self._connection_count = 0
        self._sources: dict[int, random.Random | None] = {}
        self._receive = AmqpTransport.data_received
        self._lose = AmqpTransport.connection_lost

    def receive(self, connection: AmqpTransport, data: bytes) -> None:
        if id(connection) not in self._sources:
            is_single = self._connection_count % SINGLE_EVERY == 0
            source = None if is_single else random.Random(self._seed + self._connection_count)
            self._sources[id(connection)] = source
            self._connection_count += 1
        source = self._sources[id(connection)]
        for piece in _pieces(source, data):
            self.counts.count(len(piece), source is None)
            self._receive(connection, piece)

    def forget(self, connection: AmqpTransport, error: Exception | None) -> None:
        self._sources.pop(id(connection), None)
        self._lose(connection, error)


def _pieces(source: random.Random | None, data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = source.choice(SIZES) if source is not None else 1
        yield data[at : at + size]
        at += size


def main() -> None:
    path, splitter = Path(sys.argv.pop(1)), InputSplitter(int(sys.argv.pop(1)))

    def write(*_signal: object) -> None:
        new_file = path.with_suffix(".new")
        new_file.write_text(" ".join(map(str, astuple(splitter.counts))), encoding="ascii")
        os.replace(new_file, path)

    signal.signal(signal.SIGUSR1, write)
    setattr(AmqpTransport, "data_received", lambda conn, data: splitter.receive(conn, data))  # noqa: B010
    setattr(AmqpTransport, "connection_lost", lambda conn, error: splitter.forget(conn, error))  # noqa: B010
    from leveret.cli import main as leveret_main

    leveret_main()


if __name__ == "__main__":
    main()
