"""R-34: splitting input into pieces, and interleaving channels, has no effect.

The session of tests/semantics/test_fragments reaches the broker split at random and byte by byte;
contents of 2 to 20 channels are interleaved frame by frame, and split as well. Every run must end
like the unsplit session, which is sent to a second broker. The broker splits the input itself
(split_input.py), because the system may join separate writes.
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
from tests.torture.security.loop_lag import read_report
from tests.torture.security.split_input import SplitCounts

INTERLEAVED_EVERY = 5
BODIES = 3
MIN_SESSION_BYTES = 20_000
"""Minimum bytes of a session."""
RANDOM_PIECE = 1_000
"""Maximum average bytes of random pieces; 638 is expected."""


class _SlowTarget(Target):
    """A target with longer timeouts, for busy machines."""

    def socket(self) -> RawClient:
        return RawClient(self.host, self.port, timeout=60)


async def split_sessions(
    directory: Path, splits: int, seed: int, progress: Progress = silent
) -> Outcome:
    plain = BrokerProcess(directory / "plain", "--memory")
    await plain.start()
    reference = await asyncio.to_thread(play, _SlowTarget(*plain.address), _unsplit)
    await plain.stop()
    broker, file = BrokerProcess(directory / "cut", "--memory"), directory.with_name("cuts")
    broker.program = ("-m", "tests.torture.security.split_input", str(file), str(seed))
    await broker.start()
    try:
        target, expected = _SlowTarget(*broker.address), reference.comparable()
        mixed, problems = await asyncio.to_thread(
            _run_all, target, expected, splits, seed, progress
        )
        counts = SplitCounts.read(await read_report(broker, file))
    finally:
        await broker.stop()
    problems += split_problems(counts, splits - mixed)
    figures = (
        f"{splits - mixed} sessions cut at random, or byte by byte, {mixed} with the content of "
        "2 to 20 channels interleaved frame by frame and cut; the broker received "
        f"{counts.byte_count + counts.single_bytes} bytes in "
        f"{counts.pieces + counts.single_pieces} pieces, {counts.single_pieces} of them single "
        f"bytes: {len(problems)} ended differently from the unsplit session"
    )
    return Outcome("R-34", "fragmented input", figures, tuple(problems))


def _unsplit(data: bytes) -> list[bytes]:
    return [data]


def _run_all(
    target: Target, expected: object, splits: int, seed: int, progress: Progress
) -> tuple[int, list[str]]:
    source, problems, mixed = random.Random(seed), list[str](), 0
    for number in range(splits):
        if number % INTERLEAVED_EVERY == INTERLEAVED_EVERY - 1:
            mixed += 1
            problems += _mixed(target, source)
        elif play(target, _unsplit).comparable() != expected:
            problems.append(f"split {number} ended differently")
        progress(number + 1, splits)
    return mixed, problems


def split_problems(counts: SplitCounts, played: int) -> list[str]:
    """Problems if the pieces were too large, or if input is missing."""
    problems = []
    if counts.byte_count + counts.single_bytes < played * MIN_SESSION_BYTES:
        problems.append(
            f"only {counts.byte_count + counts.single_bytes} bytes in {played} sessions"
        )
    if not counts.single_bytes or counts.single_pieces != counts.single_bytes:
        problems.append(f"{counts.single_bytes} single bytes in {counts.single_pieces} pieces")
    if counts.pieces * RANDOM_PIECE < counts.byte_count:
        problems.append(f"{counts.byte_count} bytes in {counts.pieces} pieces only")
    return problems


def _mixed(target: Target, source: random.Random) -> list[str]:
    """Publish on many channels at once, each to its own queue; all messages must arrive intact."""
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
        client.send_bytes(b"".join(_shuffled(source, frames)))
        received = {number: [_get(client, number) for _ in range(BODIES)] for number in channels}
    return [
        f"channel {number} got a different content"
        for number in channels
        if received[number] != sent[number]
    ]


def _frames(number: int, bodies: list[bytes]) -> list[bytes]:
    return [
        wire.encode(number, part) for body in bodies for part in message("", f"mix-{number}", body)
    ]


def _shuffled(source: random.Random, frames: dict[int, list[bytes]]) -> Iterator[bytes]:
    """Interleave the frames of channels at random, in order on each channel."""
    left = {number: iter(parts) for number, parts in frames.items()}
    turns = [number for number, parts in frames.items() for _ in parts]
    source.shuffle(turns)
    for number in turns:
        yield next(left[number])


def _get(client: RawClient, number: int) -> bytes:
    client.send(number, Basic.Get(queue=f"mix-{number}", no_ack=True))
    return client.content(Basic.GetOk, number).body
