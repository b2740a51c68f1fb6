"""R-32: the decoders, guided by coverage (atheris). R-33: recorded sessions, mutated, over sockets.

Phrases of a grammar (sessions.py) take the place of boofuzz, whose sessions come one by one. A
mutated session may be refused anywhere, but the broker must go on, in memory it had before, and
its log must be free of tracebacks; a canary logs in all the while, and at another broker, which is
left alone: the machine may be slow for both. Whatever still makes sense after some silence is left
by its client, or by some to the heartbeat, which is of a second: either must end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pamqp import commands, frame
from pamqp.exceptions import UnmarshalingException

from tests.semantics.test_fragments import closing, message, opening
from tests.semantics.test_hostile_bytes import early_mutated, mutated, payload_mutated
from tests.support import wire
from tests.support.brokers import Target
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security import round_trips
from tests.torture.security.canary import Canary
from tests.torture.security.raw import Raw, percentile
from tests.torture.security.sessions import logged_in, record, spoken, tune_ok

OPEN_CHANNEL = frame.marshal(commands.Channel.Open(), 1)
METHODS = [(index >> 16, index & 0xFFFF) for index in commands.INDEX_MAPPING]
TUNE_OK = frame.marshal(commands.Connection.TuneOk(2047, 4096, 1), 0)
WRITTEN = (opening(Target("127.0.0.1", 0)) + closing()).replace(
    frame.marshal(commands.Connection.TuneOk(2047, 4096, 0), 0), TUNE_OK
)
"""A session as it stands in a test; others are recorded."""
SMALL, LARGE = 8 * 1024, 128 * 1024
ATHERIS_SECONDS, EXECUTIONS, EXAMPLES = 1_800, 5_000_000, 50_000
AT_ONCE = 25
PROGRESS_EVERY = 50
CANARY_RATIO = 3
GROWTH_MB = 20
WARM_UP, LEAK_SHOWS = 2_000, 10_000
"""Sessions after which caches are full, and after which a leak stands out against them."""
SILENCE_SECONDS = 0.5
HANDSHAKE_SECONDS, ENDS_SECONDS = 3, 30
LEFT_ALONE = 0.1
"""The share of those that fall silent which the broker has to end by itself."""
ALLOWED = {str(code) for code in (403, 501, 502, 503, 504, 505, 530, 540)}
"""403 to a password that was mutated: the clients have asked to be told."""
PLAIN = {"end", "close-ok", "left", "no heartbeat"}
"""Ends without a code: as the broker likes, because the client asked for it or has gone, or since
it was silent for too long."""


def spliced(source: random.Random, octets: bytes) -> bytes:
    """A stretch of the session put in somewhere else, frames whole or not."""
    start, at = source.randrange(8, len(octets)), source.randrange(8, len(octets))
    stretch = octets[start : start + source.choice((20, 200, 5_000))]
    return octets[:at] + stretch + octets[at:]


def invented(source: random.Random, octets: bytes) -> bytes:
    """After the log-in, methods of every class and number with anything as their arguments."""
    frames = [logged_in(octets)]
    for _ in range(source.randrange(1, 8)):
        method = struct.pack(">HH", *source.choice(METHODS))
        payload = method + source.randbytes(source.choice((0, 1, 4, 12, 60, 300)))
        kind, channel = source.choice((1, 1, 1, 1, 2, 3, 8, 0)), source.choice((0, 1, 1, 1, 2, 9))
        frames.append(wire.frame(kind, channel, payload))
    return b"".join(frames)


HANDS = (mutated, early_mutated, payload_mutated, spliced, invented, spoken)
"""Ways to make something else of the session."""


async def fuzz_live(
    directory: Path, sessions: int, seed: int, progress: Progress = silent
) -> Outcome:
    broker, other = await _start(directory / "attacked"), await _start(directory / "left-alone")
    recorded = (WRITTEN, *await record(other.address))
    source = random.Random(seed)
    await asyncio.gather(*(_guess(broker, f"wrong {n}") for n in range(8)))  # hashing takes memory
    await _Storm(broker, source, recorded).blow(max(AT_ONCE, min(sessions // 10, WARM_UP)))
    before = broker.memory()
    storm = _Storm(broker, source, recorded, progress)
    singer = await Canary.start(broker, other)
    await storm.blow(sessions)
    canary, quiet = await singer.end()
    ends = storm.ends
    growth = broker.memory() - before
    await other.stop()
    await broker.stop()  # it looks for tracebacks in the log
    problems = [f"{ends[end]} ended with {end}" for end in ends if end not in ALLOWED | PLAIN]
    if growth > (GROWTH_MB if sessions >= LEAK_SHOWS else 3 * GROWTH_MB):
        problems.append(f"{growth:.1f} MB more")
    if float("inf") in canary:
        problems.append("a canary was refused")
    figures = (
        f"{sessions} sessions, of pika, aio-pika and written, mutated or by a grammar, ended "
        f"{dict(ends.most_common(8))}, {growth:+.1f} MB at most; "
        f"canary p99 {percentile(canary, 0.99) * 1000:.0f} ms "
        f"({percentile(quiet, 0.99) * 1000:.0f} ms where nobody attacks)"
    )
    late = []
    if percentile(canary, 0.99) > CANARY_RATIO * percentile(quiet, 0.99):
        late.append("the canary was slow")
    return Outcome("R-33", "mutated sessions", figures, tuple(problems), tuple(late))


async def _start(directory: Path) -> BrokerProcess:
    broker = BrokerProcess(directory, "--memory")
    broker.settings = (
        "login_tries_per_source=0",
        "log_level=error",
        f"handshake_timeout={HANDSHAKE_SECONDS}",
    )
    await broker.start()
    return broker


async def _guess(broker: BrokerProcess, password: str) -> None:
    raw = await Raw.connect(broker.address)
    await raw.log_in("nobody", password)
    raw.drop()


class _Storm:
    """A few attackers at a time, each with session after session."""

    def __init__(
        self,
        broker: BrokerProcess,
        source: random.Random,
        sessions: tuple[bytes, ...],
        progress: Progress = silent,
    ) -> None:
        self._broker = broker
        self._source = source
        self._sessions = sessions
        self._progress = progress
        self.ends: Counter[str] = Counter()

    async def blow(self, sessions: int) -> None:
        left = iter(range(sessions))
        await asyncio.gather(*(self._attacker(left, sessions) for _ in range(AT_ONCE)))

    async def _attacker(self, left: Iterator[int], sessions: int) -> None:
        for _ in left:
            session = self._source.choice(self._sessions)
            octets = self._source.choice(HANDS)(self._source, session)
            is_left_alone = self._source.random() < LEFT_ALONE and tune_ok(session) in octets
            self.ends[await _attack(self._broker, octets, is_left_alone)] += 1
            if self.ends.total() % PROGRESS_EVERY == 0:
                self._progress(self.ends.total(), sessions)


async def _attack(broker: BrokerProcess, octets: bytes, is_left_alone: bool) -> str:
    """How the broker ended it: with the code of its close, or why without one."""
    raw = await Raw.connect(broker.address)
    try:
        raw.send(octets)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENCE_SECONDS):
                return await _end(raw) or "end"
        if not is_left_alone:
            raw.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDS_SECONDS):
                return await _end(raw) or ("no heartbeat" if is_left_alone else "left")
        return "nothing, and was kept"
    finally:
        raw.drop()


async def _end(raw: Raw) -> str:
    """What the broker says to end it; nothing when it says nothing."""
    while (said := await _next(raw)) is not None:
        if isinstance(said, commands.Connection.Close):
            return str(said.reply_code)
        if isinstance(said, commands.Connection.CloseOk):
            return "close-ok"
    return ""


async def _next(raw: Raw) -> Any:
    """Messages come as they were sent, with properties that pamqp cannot read."""
    while True:
        with contextlib.suppress(UnmarshalingException):
            return await raw.next()


async def fuzz_inside(
    directory: Path, seconds: int, seed: int, progress: Progress = silent
) -> Outcome:
    """atheris on the wire, the tables and the content headers, in a process of its own; then
    round trips by hypothesis, and the worst inputs measured."""
    runs, covered, problems = await fuzz_decoders(
        directory, "max_total_time", seconds, seed, progress
    )
    examples = max(100, EXAMPLES * seconds // ATHERIS_SECONDS)
    for target in round_trips.TARGETS:
        try:
            await asyncio.to_thread(round_trips.run_target, target, examples, seed)
        except Exception as error:  # noqa: BLE001 - whatever a property raises is a finding
            problems.append(f"{target}: {type(error).__name__}: {error}")
    took, worst = await asyncio.to_thread(round_trips.measure_worst)
    slowest = max(took, key=lambda name: took[name])
    late = []
    if took["wide"] > round_trips.WIDE_MILLISECONDS:
        late.append(f"a wide table took {took['wide']:.1f} ms")
    if took[slowest] > round_trips.MILLISECONDS:
        late.append(f"{slowest} took {took[slowest]:.1f} ms")
    if seconds >= ATHERIS_SECONDS and runs < EXECUTIONS:
        late.append(f"{runs} executions instead of {EXECUTIONS}")
    figures = (
        f"{runs} executions in {seconds} s, coverage {covered}; {examples} round trips each of "
        f"{', '.join(round_trips.TARGETS)}: only declared errors escaped; the worst table of 128 "
        f"KiB takes {took[slowest]:.1f} ms, one of 1-octet keys {took['wide']:.1f} ms"
    )
    return Outcome("R-32", "fuzzed decoders", figures, (*problems, *worst), tuple(late))


def _write_seeds(directory: Path) -> Path:
    """Where atheris starts from: the session's frames, alone and together, and a table."""
    directory.mkdir(parents=True)
    frames, at = [], 8
    while at < len(WRITTEN):
        size = 8 + struct.unpack_from(">I", WRITTEN, at + 3)[0]
        frames.append(WRITTEN[at : at + size])
        at += size
    small = [octets for octets in frames if len(octets) < 1_000]
    table = wire.table(*((kind, wire.typed(kind, b"\0" * 8)) for kind in "tbBsuIilfdDTSxVFA"))
    seeds = [WRITTEN[:8], WRITTEN[:1_000], b"".join(small)[:4_000], *small, table]
    for number, octets in enumerate(seeds):
        (directory / f"before-{number}").write_bytes(octets)
        (directory / f"after-{number}").write_bytes(b"\x41" + octets)
    return directory


def _write_large_seeds(directory: Path) -> Path:
    """As many frames of a kind as fit into 128 KiB, which are handed over in portions."""
    directory.mkdir(parents=True)
    publish = b"".join(wire.encode(1, part) for part in message("", "q", b"x"))
    kinds = [
        frame.marshal(commands.Basic.Qos(), 1),
        frame.marshal(commands.Basic.Ack(1), 1),
        OPEN_CHANNEL.replace(b"\x01\x00\x01", b"\x01\x00\x02", 1)
        + frame.marshal(commands.Channel.Close(200, "", 0, 0), 2),
        wire.frame(wire.HEARTBEAT, 0),
        publish,
        publish + publish.replace(b"\x01q", b"\x01r"),
    ]
    for number, octets in enumerate(kinds):
        many = octets * ((LARGE - 1) // len(octets))
        (directory / f"at-once-{number}").write_bytes(b"\x42" + many)
        (directory / f"aside-{number}").write_bytes(b"\x41" + many)
    (directory / "login").write_bytes(WRITTEN)
    return directory


async def fuzz_decoders(
    directory: Path, kind: str, size: int, seed: int, progress: Progress = silent
) -> tuple[int, str, list[str]]:
    """Small inputs for so long, or so many, and beside them large ones, of which there are fewer;
    the long form has two processes with small ones."""
    small, large = _write_seeds(directory / "small"), _write_large_seeds(directory / "large")
    is_timed = kind == "max_total_time"
    few = f"-{kind}={size if is_timed else size // 2_000}"
    runs = [
        _atheris(small, f"-{kind}={size}", f"-max_len={SMALL}", seed, progress),
        _atheris(large, few, f"-max_len={LARGE}", seed, silent),
    ]
    if is_timed:
        again = _write_seeds(directory / "again")
        runs.append(_atheris(again, f"-{kind}={size}", f"-max_len={SMALL}", seed + 1, silent))
    results = await asyncio.gather(*runs)
    covered = ", ".join(covered for _, covered, _ in results)
    problems = [problem for _, _, some in results for problem in some]
    return sum(runs for runs, _, _ in results), covered, problems


def _inherited_mb() -> int:
    """A new process counts what the one that started it held as its own peak."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


async def _atheris(
    seeds: Path, limit: str, largest: str, seed: int, progress: Progress
) -> tuple[int, str, list[str]]:
    """(executions, coverage, problems)"""
    began, seconds = time.monotonic(), int(limit.rpartition("=")[2])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.security.atheris_harness",
        limit, f"-seed={seed % 2**31}", f"-rss_limit_mb={_inherited_mb() + 1024}", "-timeout=60",
        f"-artifact_prefix={seeds}-", largest, str(seeds),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    talk = asyncio.create_task(process.communicate())
    while not talk.done():
        progress(min(int(time.monotonic() - began), seconds), seconds)
        await asyncio.wait({talk}, timeout=1)
    said = (await talk)[1].decode(errors="replace")
    runs = re.findall(r"^(?:#|Done )(\d+)(?:\t| runs)", said, re.MULTILINE)
    covered = re.findall(r"cov: (\d+)", said)
    problems = []
    if process.returncode:
        last = [line for line in said.splitlines() if line.strip()][-12:]
        problems.append("atheris found something: " + " / ".join(last))
    if not runs:
        problems.append("atheris ran nothing (is it installed? pip install atheris)")
    return int(runs[-1]) if runs else 0, covered[-1] if covered else "?", problems
