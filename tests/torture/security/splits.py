"""R-34: how octets are cut on their way, and how channels take turns, has no effect.

The session of tests/semantics/test_fragments comes to the broker cut at random and octet by octet;
contents of 2 to 20 channels are shuffled into each other, frame by frame, and cut as well. Every
run must end as the plain one does, which another broker is sent. The broker cuts (cutting.py):
writes do not stay apart on their way through the system.
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
from tests.torture.security.cutting import Cuts
from tests.torture.security.health import notes

INTERLEAVED_EVERY = 5
BODIES = 3
FEWEST_OCTETS = 20_000
"""That a session which is played has at least."""
RANDOM_PIECE = 1_000
"""Octets that random pieces have at most on average: 638 is what to expect."""


class _Patient(Target):
    """Machines that run this are busy."""

    def socket(self) -> RawClient:
        return RawClient(self.host, self.port, timeout=60)


async def split_sessions(
    directory: Path, splits: int, seed: int, progress: Progress = silent
) -> Outcome:
    plain = BrokerProcess(directory / "plain", "--memory")
    await plain.start()
    whole = await asyncio.to_thread(play, _Patient(*plain.address), _whole)
    await plain.stop()
    broker, file = BrokerProcess(directory / "cut", "--memory"), directory.with_name("cuts")
    broker.program = ("-m", "tests.torture.security.cutting", str(file), str(seed))
    await broker.start()
    try:
        target, same = _Patient(*broker.address), whole.comparable()
        mixed, problems = await asyncio.to_thread(_play_all, target, same, splits, seed, progress)
        cuts = Cuts.read(await notes(broker, file))
    finally:
        await broker.stop()
    problems += too_few(cuts, splits - mixed)
    figures = (
        f"{splits - mixed} sessions cut at random, or octet by octet, {mixed} with the content of "
        f"2 to 20 channels shuffled, frame by frame, and cut; the broker received "
        f"{cuts.octets + cuts.single_octets} octets in {cuts.pieces + cuts.single_pieces} pieces, "
        f"{cuts.single_pieces} of them alone: {len(problems)} ended otherwise than the plain one"
    )
    return Outcome("R-34", "fragments", figures, tuple(problems))


def _whole(octets: bytes) -> list[bytes]:
    return [octets]


def _play_all(
    target: Target, same: object, splits: int, seed: int, progress: Progress
) -> tuple[int, list[str]]:
    source, problems, mixed = random.Random(seed), list[str](), 0
    for number in range(splits):
        if number % INTERLEAVED_EVERY == INTERLEAVED_EVERY - 1:
            mixed += 1
            problems += _mixed(target, source)
        elif play(target, _whole).comparable() != same:
            problems.append(f"split {number} ended otherwise")
        progress(number + 1, splits)
    return mixed, problems


def too_few(cuts: Cuts, played: int) -> list[str]:
    """Whether the pieces were as small as they should have been, and came to all that was sent."""
    problems = []
    if cuts.octets + cuts.single_octets < played * FEWEST_OCTETS:
        problems.append(f"only {cuts.octets + cuts.single_octets} octets in {played} sessions")
    if not cuts.single_octets or cuts.single_pieces != cuts.single_octets:
        problems.append(f"{cuts.single_octets} single octets in {cuts.single_pieces} pieces")
    if cuts.pieces * RANDOM_PIECE < cuts.octets:
        problems.append(f"{cuts.octets} octets in {cuts.pieces} pieces only")
    return problems


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
        client.send_bytes(b"".join(_shuffled(source, frames)))
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
