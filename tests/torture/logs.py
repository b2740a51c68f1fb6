"""R-09 and R-10: the files of a log are cut at every byte and damaged at random bits.

R-09 is about the tail that was written and not yet synced: recovery never raises, keeps whole
batches only, everything synced among them, and the next append works. R-10 is about what is sealed:
a flipped bit costs the batch it is in and nothing else, and no wrong payload is ever read.

In this process, on the log library itself; the files are in memory where the system has such a
place, because nothing here depends on the disk.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from queues.log import LogError, Partition, PartitionSettings
from queues.log.segment import index_path, list_segments, log_path
from tests.torture.outcome import Outcome, Progress, silent

TAIL = 65_536
SETTINGS = PartitionSettings(durable=False)
SEALED = PartitionSettings(max_segment_bytes=40_000, durable=False)
MOST_PROBLEMS = 20


@cache
def body_of(offset: int, size: int) -> bytes:
    """A payload that tells its offset and no other."""
    return b"%09d" % offset + random.Random(offset).randbytes(size)


def write(log: Partition, count: int, size: int) -> None:
    start = log.view.end.offset
    entries = [
        (b"x", b"k%d" % (n % 7), b"\0\0", body_of(n, size)) for n in range(start, start + count)
    ]
    log.write(entries, 1_000 + start)
    log.reveal()


@contextmanager
def in_memory(directory: Path) -> Iterator[Path]:
    shm = Path("/dev/shm")
    parent = shm if os.access(shm, os.W_OK) else directory
    with tempfile.TemporaryDirectory(prefix="leveret-torture-", dir=parent) as place:
        yield Path(place)


def readable(log: Partition, problems: list[str], what: str) -> set[int]:
    """All offsets that can be read; whatever is not what was written is a problem."""
    found: set[int] = set()
    at = 0
    while records := log.read(at, 500):
        for record in records:
            size = len(record.body) - 9
            if record.body != body_of(record.offset, size):
                problems.append(f"{what}: wrong payload at {record.offset}")
        found |= {record.offset for record in records}
        at = records[-1].offset + 1
    return found


# R-09 ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tail:
    """A log whose last 64 KiB and a little are not synced; `ends` are (position, next offset)."""

    directory: Path
    data: bytes
    mark: bytes
    synced: int
    ends: list[tuple[int, int]]

    def restore(self, data: bytes) -> Partition:
        log_path(self.directory, 0).write_bytes(data)
        index_path(self.directory, 0).unlink(missing_ok=True)
        (self.directory / "committed").write_bytes(self.mark)
        return Partition(self.directory, SETTINGS)

    def whole(self, length: int) -> tuple[int, int]:
        return max(end for end in self.ends if end[0] <= length)


def make_tail(directory: Path) -> Tail:
    log = Partition(directory, SETTINGS)
    for _ in range(5):
        write(log, 20, 60)
    log.sync()
    mark, synced = (directory / "committed").read_bytes(), log.next_offset
    ends = [(log.view.end.position, synced)]
    while log.view.end.position - ends[0][0] < TAIL:
        write(log, 5 + len(ends) % 20, 90)
        ends.append((log.view.end.position, log.next_offset))
    data = log_path(directory, 0).read_bytes()
    log.close()
    return Tail(directory, data, mark, synced, ends)


async def cut_tails(directory: Path, flips: int, seed: int, progress: Progress = silent) -> Outcome:
    """Every cut of the last 64 KiB (every 64th in short forms), then `flips` single bits."""
    with in_memory(directory) as place:
        tail = make_tail(place)
        step = 1 if flips >= 2_000 else 64
        problems: list[str] = []
        cuts = range(len(tail.data) - TAIL, len(tail.data), step)
        for number, cut in enumerate(cuts):
            _cut(tail, cut, problems)
            await _breathe(number)
        chance = random.Random(seed)
        for done in range(flips):
            bit = chance.randrange((len(tail.data) - TAIL) * 8, len(tail.data) * 8)
            _flip_tail(tail, bit, problems)
            await _breathe(done)
            progress(done + 1, flips)
    figures = f"{len(cuts):,} cuts, {flips:,} flips"
    return Outcome("R-09", "log tail", figures, tuple(problems[:MOST_PROBLEMS]))


def _cut(tail: Tail, cut: int, problems: list[str]) -> None:
    what = f"cut at {cut}"
    try:
        log = tail.restore(tail.data[:cut])
    except (LogError, OSError) as error:
        problems.append(f"{what}: {error!r}")
        return
    end, offset = tail.whole(cut)
    if (log.next_offset, log.cut_bytes) != (offset, cut - end):
        problems.append(f"{what}: {log.next_offset} of {offset}, {log.cut_bytes} bytes cut")
    _append(log, what, problems)


def _flip_tail(tail: Tail, bit: int, problems: list[str]) -> None:
    what = f"bit {bit} of the tail"
    hurt = bytearray(tail.data)
    hurt[bit // 8] ^= 1 << bit % 8
    try:
        log = tail.restore(bytes(hurt))
    except (LogError, OSError) as error:
        problems.append(f"{what}: {error!r}")
        return
    after = next(at for at, (end, _) in enumerate(tail.ends) if end > bit // 8)
    victim = set(range(tail.ends[after - 1][1], tail.ends[after][1]))
    expected = set(range(tail.ends[-1][1])) - victim
    if readable(log, problems, what) != expected:
        problems.append(f"{what}: other records than those of its batch are missing")
    if log.next_offset < tail.synced:
        problems.append(f"{what}: what was synced is gone")
    _append(log, what, problems)


def _append(log: Partition, what: str, problems: list[str]) -> None:
    offset = log.next_offset
    write(log, 1, 20)
    if [record.offset for record in log.read(offset, 10)] != [offset]:
        problems.append(f"{what}: what is appended cannot be read")
    log.close()


# R-10 ------------------------------------------------------------------------------------------


async def flip_sealed(
    directory: Path, flips: int, seed: int, progress: Progress = silent
) -> Outcome:
    """Single bits of sealed segments and their indexes."""
    problems: list[str] = []
    counts = {"segments": 0, "indexes": 0}
    with in_memory(directory) as place:
        batches = _make_sealed(place)
        everything = {offset for *_, held in batches for offset in held}
        names = dict(list_segments(place))
        chance = random.Random(seed)
        for done in range(flips):
            segment, position, length, held = chance.choice(batches)
            if done % 5 == 4:
                path, bit = index_path(place, segment), 0
                bit = chance.randrange(path.stat().st_size * 8)
                lost: set[int] = set()
                counts["indexes"] += 1
            else:
                path = log_path(place, segment)
                bit = position * 8 + chance.randrange(length * 8)
                lost = set(held)
                counts["segments"] += 1
            sound = path.read_bytes()
            hurt = bytearray(sound)
            hurt[bit // 8] ^= 1 << bit % 8
            path.write_bytes(hurt)
            _look(place, f"bit {bit} of {path.name}", everything - lost, bool(lost), problems)
            path.write_bytes(sound)
            if dict(list_segments(place)) != names:
                problems.append(f"bit {bit} of {path.name}: segments were changed")
            await _breathe(done)
            progress(done + 1, flips)
    figures = f"{counts['segments']:,} flips in segments, {counts['indexes']:,} in indexes"
    return Outcome("R-10", "log rot", figures, tuple(problems[:MOST_PROBLEMS]))


def _make_sealed(directory: Path) -> list[tuple[int, int, int, range]]:
    """Segment, position, length and offsets of every batch; all segments are sealed."""
    log = Partition(directory, SEALED)
    found = []
    for _ in range(60):
        write(log, 20, 60)
        log.sync()
    log.roll()
    log.sync()
    for batch in log.view.batches(0):
        h = batch.header
        held = range(h.base_offset, h.next_offset)
        found.append((batch.segment, batch.position, h.length, held))
    log.close()
    return found


def _look(
    directory: Path, what: str, expected: set[int], is_damaged: bool, problems: list[str]
) -> None:
    try:
        log = Partition(directory, SEALED)
    except (LogError, OSError) as error:
        problems.append(f"{what}: {error!r}")
        return
    if readable(log, problems, what) != expected:
        problems.append(f"{what}: other records than those of its batch are missing")
    if bool(log.damage()) != is_damaged or len(log.damage()) > 1:
        problems.append(f"{what}: reported as {log.damage()}")
    log.close()


async def _breathe(done: int) -> None:
    if done % 256 == 255:
        await asyncio.sleep(0)
