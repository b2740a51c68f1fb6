"""The broker, to which everything comes in pieces: `python -m ... FILE SEED serve ...`.

Writes to a socket do not stay apart: the system joins what the broker has not read yet. So it is
cut where the broker takes it, at random, or on some connections octet by octet. SIGUSR1 writes to
the file how much came so far, and in how many pieces.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from amqp_server.server import Connection

SIZES = (1, 2, 7, 8, 50, 300, 4096)
SINGLE_EVERY = 50
"""One in so many connections gets octet by octet."""


@dataclass(slots=True)
class Cuts:
    octets: int = 0
    pieces: int = 0
    single_octets: int = 0
    single_pieces: int = 0

    @staticmethod
    def read(text: str) -> Cuts:
        return Cuts(*map(int, text.split()))

    def count(self, octets: int, is_single: bool) -> None:
        """One more piece."""
        if is_single:
            self.single_octets += octets
            self.single_pieces += 1
        else:
            self.octets += octets
            self.pieces += 1


class Cutter:
    """Cuts what connections are given, each as its number and the seed say."""

    def __init__(self, seed: int) -> None:
        self.cuts = Cuts()
        self._seed = seed
        self._made = 0
        self._sources: dict[int, random.Random | None] = {}
        self._receive = Connection.data_received
        self._lose = Connection.connection_lost

    def receive(self, connection: Connection, data: bytes) -> None:
        if id(connection) not in self._sources:
            is_single = self._made % SINGLE_EVERY == 0
            source = None if is_single else random.Random(self._seed + self._made)
            self._sources[id(connection)] = source
            self._made += 1
        source = self._sources[id(connection)]
        for piece in _pieces(source, data):
            self.cuts.count(len(piece), source is None)
            self._receive(connection, piece)

    def lose(self, connection: Connection, error: Exception | None) -> None:
        self._sources.pop(id(connection), None)
        self._lose(connection, error)


def _pieces(source: random.Random | None, data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = source.choice(SIZES) if source is not None else 1
        yield data[at : at + size]
        at += size


def main() -> None:
    path, cutter = Path(sys.argv.pop(1)), Cutter(int(sys.argv.pop(1)))

    def write(*_signal: object) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(" ".join(map(str, astuple(cutter.cuts))), encoding="ascii")
        os.replace(fresh, path)

    signal.signal(signal.SIGUSR1, write)
    setattr(Connection, "data_received", lambda one, data: cutter.receive(one, data))  # noqa: B010
    setattr(Connection, "connection_lost", lambda one, error: cutter.lose(one, error))  # noqa: B010
    from leveret.cli import main as leveret_main

    leveret_main()


if __name__ == "__main__":
    main()
