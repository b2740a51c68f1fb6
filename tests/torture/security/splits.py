"""R-34: how octets are cut into writes, and how channels take turns, has no effect.

The session of tests/semantics/test_fragments is cut at random and octet by octet; contents of 2 to
20 channels are shuffled into each other, frame by frame. Every run must end as the plain one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

from pamqp.commands import Basic, Channel, Queue

from tests.semantics.test_fragments import message, play
from tests.support import wire
from tests.support.brokers import Target
from tests.support.rawclient import RawClient
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

SIZES = (1, 2, 7, 8, 50, 300, 4096)
INTERLEAVED_EVERY = 5
OCTETS_EVERY = 50
BODIES = 3


class _Patient(Target):
    """Machines that run this are busy."""

    def socket(self) -> RawClient:
        return RawClient(self.host, self.port, timeout=60)


async def split_sessions(
    directory: Path, splits: int, seed: int, progress: Progress = silent
) -> Outcome:
    broker = BrokerProcess(directory, "--memory")
    await broker.start()
    try:
        target = _Patient(*broker.address)
        counted = await asyncio.to_thread(_play_all, target, splits, seed, progress)
    finally:
        await broker.stop()
    cut, mixed, problems = counted
    figures = (
        f"{cut} sessions cut into random writes or single octets, {mixed} with the content of 2 to "
        f"20 channels shuffled, frame by frame: {len(problems)} ended otherwise than the plain one"
    )
    return Outcome("R-34", "fragments", figures, tuple(problems))


def _play_all(
    target: Target, splits: int, seed: int, progress: Progress
) -> tuple[int, int, list[str]]:
    source, problems, mixed = random.Random(seed), list[str](), 0
    whole = play(target, lambda octets: [octets]).comparable()
    for number in range(splits):
        if number % INTERLEAVED_EVERY == INTERLEAVED_EVERY - 1:
            mixed += 1
            problems += _mixed(target, source)
        else:
            one = 1 if number % OCTETS_EVERY == 0 else 0
            if play(target, _Cut(source, one)).comparable() != whole:
                problems.append(f"split {number} ended otherwise")
        progress(number + 1, splits)
    return splits - mixed, mixed, problems


class _Cut:
    """Cuts octets into pieces of random sizes, or of one size."""

    def __init__(self, source: random.Random, size: int = 0) -> None:
        self._source = source
        self._size = size

    def __call__(self, octets: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(octets):
            size = self._size or self._source.choice(SIZES)
            yield octets[at : at + size]
            at += size


def _mixed(target: Target, source: random.Random) -> list[str]:
    """Messages of many channels at once, each to a queue of its own; all must come whole."""
    channels = range(1, source.randrange(2, 21) + 1)
    sent = {
        number: [source.randbytes(source.choice((0, 1, 4_000, 9_000))) for _ in range(BODIES)]
        for number in channels
    }
    with contextlib.closing(target.connect(frame_max=4096)) as client:
        for number in channels:
            client.send(
                number, Channel.Open(), Queue.Declare(queue=f"mix-{number}", exclusive=True)
            )
            client.expect(Channel.OpenOk, number)
            client.expect(Queue.DeclareOk, number)
        frames = {number: _frames(number, bodies) for number, bodies in sent.items()}
        octets = b"".join(_shuffled(source, frames))
        for piece in _Cut(source)(octets) if source.random() < 0.5 else (octets,):
            client.send_bytes(piece)
        got = {number: [_get(client, number) for _ in range(BODIES)] for number in channels}
    return [
        f"channel {number} got another content"
        for number in channels
        if got[number] != sent[number]
    ]


def _frames(number: int, bodies: list[bytes]) -> list[bytes]:
    return [
        wire.encode(number, part) for body in bodies for part in message("", f"mix-{number}", body)
    ]


def _shuffled(source: random.Random, frames: dict[int, list[bytes]]) -> Iterator[bytes]:
    """In order on each channel, in any order between them."""
    left = {number: iter(parts) for number, parts in frames.items()}
    turns = [number for number, parts in frames.items() for _ in parts]
    source.shuffle(turns)
    for number in turns:
        yield next(left[number])


def _get(client: RawClient, number: int) -> bytes:
    client.send(number, Basic.Get(queue=f"mix-{number}", no_ack=True))
    return client.content(Basic.GetOk, number).body
