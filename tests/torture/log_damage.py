"""R-09 and R-10: the files of a log are cut at every byte and damaged at random bits.

R-09 damages the tail that was written and not yet synced: recovery never raises, keeps only whole
batches, keeps everything that was synced, and the next append works. R-10 damages sealed segments:
a flipped bit costs only the batch that contains it, and no wrong payload is ever read.

Both run the log library in this process, with files in memory if the system has such a directory,
since nothing here depends on the disk.
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

from leveret.queues.log.files import LogError, Partition, PartitionSettings
from leveret.queues.log.files.segment import index_path, list_segments, log_path
from tests.torture.outcome import Outcome, Progress, silent

TAIL = 65_536
SETTINGS = PartitionSettings(durable=False)
SEALED = PartitionSettings(max_segment_bytes=40_000, durable=False)
MAX_PROBLEMS = 20


@cache
def body_of(offset: int, size: int) -> bytes:
    """A payload that is unique to its offset."""
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
    with tempfile.TemporaryDirectory(prefix="leveret-torture-", dir=parent) as directory_name:
        yield Path(directory_name)


def readable(log: Partition, problems: list[str], label: str) -> set[int]:
    """All offsets that can be read; a payload that was not written is a problem."""
    offsets: set[int] = set()
    at = 0
    while records := log.read(at, 500):
        for record in records:
            size = len(record.body) - 9
            if record.body != body_of(record.offset, size):
                problems.append(f"{label}: wrong payload at {record.offset}")
        offsets |= {record.offset for record in records}
        at = records[-1].offset + 1
    return offsets


# R-09 ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tail:
    """A log whose last 64 KiB or more are not synced; `ends` are (position, next offset)."""

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

    def last_whole_batch(self, length: int) -> tuple[int, int]:
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
    """Cut at every byte of the last 64 KiB (every 64th in short forms), then flip single bits."""
    with in_memory(directory) as log_directory:
        tail = make_tail(log_directory)
        step = 1 if flips >= 2_000 else 64
        problems: list[str] = []
        cuts = range(len(tail.data) - TAIL, len(tail.data), step)
        for number, cut in enumerate(cuts):
            _cut(tail, cut, problems)
            await _yield_sometimes(number)
        rng = random.Random(seed)
        for done in range(flips):
            bit = rng.randrange((len(tail.data) - TAIL) * 8, len(tail.data) * 8)
            _flip_tail(tail, bit, problems)
            await _yield_sometimes(done)
            progress(done + 1, flips)
    figures = f"{len(cuts):,} cuts, {flips:,} flips"
    return Outcome("R-09", "damaged end of a log", figures, tuple(problems[:MAX_PROBLEMS]))


def _cut(tail: Tail, cut: int, problems: list[str]) -> None:
    label = f"cut at {cut}"
    try:
        log = tail.restore(tail.data[:cut])
    except (LogError, OSError) as error:
        problems.append(f"{label}: {error!r}")
        return
    end, offset = tail.last_whole_batch(cut)
    if (log.next_offset, log.cut_bytes) != (offset, cut - end):
        problems.append(f"{label}: {log.next_offset} of {offset}, {log.cut_bytes} bytes cut")
    _append(log, label, problems)


def _flip_tail(tail: Tail, bit: int, problems: list[str]) -> None:
    label = f"bit {bit} of the tail"
    damaged = bytearray(tail.data)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        log = tail.restore(bytes(damaged))
    except (LogError, OSError) as error:
        problems.append(f"{label}: {error!r}")
        return
    after = next(at for at, (end, _) in enumerate(tail.ends) if end > bit // 8)
    victim = set(range(tail.ends[after - 1][1], tail.ends[after][1]))
    expected = set(range(tail.ends[-1][1])) - victim
    if readable(log, problems, label) != expected:
        problems.append(f"{label}: other records than those of its batch are missing")
    if log.next_offset < tail.synced:
        problems.append(f"{label}: synced records are missing")
    _append(log, label, problems)


def _append(log: Partition, label: str, problems: list[str]) -> None:
    offset = log.next_offset
    write(log, 1, 20)
    if [record.offset for record in log.read(offset, 10)] != [offset]:
        problems.append(f"{label}: appended records cannot be read")
    log.close()


# R-10 ------------------------------------------------------------------------------------------


async def flip_sealed(
    directory: Path, flips: int, seed: int, progress: Progress = silent
) -> Outcome:
    """Flip single bits of sealed segments and their indexes."""
    problems: list[str] = []
    counts = {"segments": 0, "indexes": 0}
    with in_memory(directory) as log_directory:
        batches = _make_sealed(log_directory)
        everything = {offset for *_, offsets in batches for offset in offsets}
        names = dict(list_segments(log_directory))
        rng = random.Random(seed)
        for done in range(flips):
            segment, position, length, offsets = rng.choice(batches)
            if done % 5 == 4:
                path, bit = index_path(log_directory, segment), 0
                bit = rng.randrange(path.stat().st_size * 8)
                lost: set[int] = set()
                counts["indexes"] += 1
            else:
                path = log_path(log_directory, segment)
                bit = position * 8 + rng.randrange(length * 8)
                lost = set(offsets)
                counts["segments"] += 1
            sound = path.read_bytes()
            damaged = bytearray(sound)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            _check_readable(
                log_directory, f"bit {bit} of {path.name}", everything - lost, bool(lost), problems
            )
            path.write_bytes(sound)
            if dict(list_segments(log_directory)) != names:
                problems.append(f"bit {bit} of {path.name}: segments were changed")
            await _yield_sometimes(done)
            progress(done + 1, flips)
    figures = f"{counts['segments']:,} flips in segments, {counts['indexes']:,} in indexes"
    return Outcome(
        "R-10", "damaged sealed segments of a log", figures, tuple(problems[:MAX_PROBLEMS])
    )


def _make_sealed(directory: Path) -> list[tuple[int, int, int, range]]:
    """Segment, position, length and offsets of every batch; all segments are sealed."""
    log = Partition(directory, SEALED)
    batches = []
    for _ in range(60):
        write(log, 20, 60)
        log.sync()
    log.roll()
    log.sync()
    for batch in log.view.batches(0):
        h = batch.header
        offsets = range(h.base_offset, h.next_offset)
        batches.append((batch.segment, batch.position, h.length, offsets))
    log.close()
    return batches


def _check_readable(
    directory: Path, label: str, expected: set[int], is_damaged: bool, problems: list[str]
) -> None:
    try:
        log = Partition(directory, SEALED)
    except (LogError, OSError) as error:
        problems.append(f"{label}: {error!r}")
        return
    if readable(log, problems, label) != expected:
        problems.append(f"{label}: other records than those of its batch are missing")
    if bool(log.damage()) != is_damaged or len(log.damage()) > 1:
        problems.append(f"{label}: reported as {log.damage()}")
    log.close()


async def _yield_sometimes(done: int) -> None:
    if done % 256 == 255:
        await asyncio.sleep(0)
