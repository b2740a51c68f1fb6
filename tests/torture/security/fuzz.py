"""R-32: coverage-guided fuzzing of the decoders (atheris). R-33: mutated sessions over sockets.

A grammar (client_sessions.py) takes the place of boofuzz, which runs sessions one by one. A mutated
session may be refused anywhere, but the broker must continue, without more memory and without
tracebacks in its log. Some sessions are valid but pipelined: methods follow each other while
answers wait for the disk, up to a connection.close that must be answered; half of them go to a
broker with a disk, where the waits are longer. A canary logs in all the time, here and at a broker
that is not attacked, since the machine may be slow for both. A session that is still valid after
some silence is ended by its client, or, for some, by the heartbeat timeout of one second.
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
from tests.torture.security.client_sessions import (
    grammar_session,
    logged_in,
    pipelined_session,
    record,
    tune_ok,
)
from tests.torture.security.raw import Raw, percentile

OPEN_CHANNEL = frame.marshal(commands.Channel.Open(), 1)
METHODS = [(index >> 16, index & 0xFFFF) for index in commands.INDEX_MAPPING]
TUNE_OK = frame.marshal(commands.Connection.TuneOk(2047, 4096, 1), 0)
WRITTEN_SESSION = (opening(Target("127.0.0.1", 0)) + closing()).replace(
    frame.marshal(commands.Connection.TuneOk(2047, 4096, 0), 0), TUNE_OK
)
"""A session from a test; others are recorded."""
SMALL, LARGE = 8 * 1024, 128 * 1024
ATHERIS_SECONDS, EXECUTIONS, EXAMPLES = 1_800, 5_000_000, 50_000
AT_ONCE = 25
PROGRESS_EVERY = 50
CANARY_RATIO = 3
GROWTH_MB = 20
WARM_UP, LEAK_SESSIONS = 2_000, 10_000
"""Sessions after which caches are full, and after which a leak is larger than their growth."""
SILENCE_SECONDS = 0.5
HANDSHAKE_SECONDS, ENDS_SECONDS = 3, 30
SILENT_SHARE = 0.1
"""The share of silent sessions that the broker has to close by itself."""
ALLOWED = {str(code) for code in (403, 501, 502, 503, 504, 505, 530, 540)}
"""403 is for a mutated password: these clients have the capability to be told."""
WITHOUT_CODE = {"end", "close-ok", "left", "no heartbeat"}
"""Ends without a code: closed by the broker, requested by the client, dropped by the client, or
after a heartbeat timeout."""


def spliced(source: random.Random, session: bytes) -> bytes:
    """Copy a range of the session to another position, with or without whole frames."""
    start, at = source.randrange(8, len(session)), source.randrange(8, len(session))
    stretch = session[start : start + source.choice((20, 200, 5_000))]
    return session[:at] + stretch + session[at:]


def random_methods(source: random.Random, session: bytes) -> bytes:
    """After the login, methods of every class and number with random arguments."""
    frames = [logged_in(session)]
    for _ in range(source.randrange(1, 8)):
        method = struct.pack(">HH", *source.choice(METHODS))
        payload = method + source.randbytes(source.choice((0, 1, 4, 12, 60, 300)))
        kind, channel = source.choice((1, 1, 1, 1, 2, 3, 8, 0)), source.choice((0, 1, 1, 1, 2, 9))
        frames.append(wire.frame(kind, channel, payload))
    return b"".join(frames)


MUTATIONS = (
    mutated,
    early_mutated,
    payload_mutated,
    spliced,
    random_methods,
    grammar_session,
    pipelined_session,
)
"""Ways to change a session."""
UNANSWERED = "no close-ok"
"""A pipelined session ended without an answer to its connection.close."""


async def fuzz_live(
    directory: Path, sessions: int, seed: int, progress: Progress = silent
) -> Outcome:
    broker = await _start(directory / "attacked", "--memory")
    other = await _start(directory / "left-alone", "--memory")
    on_disk = await _start(directory / "on-disk")
    recorded = (WRITTEN_SESSION, *await record(other.address))
    source = random.Random(seed)
    await asyncio.gather(
        *(_guess(broker, f"wrong {n}") for n in range(8))
    )  # hashing allocates memory
    await _AttackRun(broker, on_disk, source, recorded).run(
        max(AT_ONCE, min(sessions // 10, WARM_UP))
    )
    before = broker.memory()
    attack = _AttackRun(broker, on_disk, source, recorded, progress)
    canary_process = await Canary.start(broker, other)
    await attack.run(sessions)
    canary, quiet = await canary_process.end()
    ends = attack.ends
    growth = broker.memory() - before
    await other.stop()
    for attacked in (broker, on_disk):
        await attacked.stop()  # fails if the log contains a traceback
    problems = [
        f"{ends[end]} ended with {end}" for end in ends if end not in ALLOWED | WITHOUT_CODE
    ]
    if growth > (GROWTH_MB if sessions >= LEAK_SESSIONS else 3 * GROWTH_MB):
        problems.append(f"{growth:.1f} MB more")
    if float("inf") in canary:
        problems.append("a canary was refused")
    figures = (
        f"{sessions} sessions of pika, aio-pika and a test, mutated, pipelined or from a grammar, "
        f"ended "
        f"{dict(ends.most_common(8))}, {growth:+.1f} MB at most; "
        f"canary p99 {percentile(canary, 0.99) * 1000:.0f} ms "
        f"({percentile(quiet, 0.99) * 1000:.0f} ms at the other broker)"
    )
    late = []
    if percentile(canary, 0.99) > CANARY_RATIO * percentile(quiet, 0.99):
        late.append("the canary was slow")
    return Outcome("R-33", "mutated sessions", figures, tuple(problems), tuple(late))


async def _start(directory: Path, *options: str) -> BrokerProcess:
    broker = BrokerProcess(directory, *options)
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


class _AttackRun:
    """A few attackers at a time, each with one session after the other."""

    def __init__(
        self,
        broker: BrokerProcess,
        on_disk: BrokerProcess,
        source: random.Random,
        sessions: tuple[bytes, ...],
        progress: Progress = silent,
    ) -> None:
        self._broker = broker
        self._on_disk = on_disk
        self._source = source
        self._sessions = sessions
        self._progress = progress
        self.ends: Counter[str] = Counter()

    async def run(self, sessions: int) -> None:
        left = iter(range(sessions))
        await asyncio.gather(*(self._attacker(left, sessions) for _ in range(AT_ONCE)))

    async def _attacker(self, left: Iterator[int], sessions: int) -> None:
        for _ in left:
            session = self._source.choice(self._sessions)
            mutate = self._source.choice(MUTATIONS)
            data = mutate(self._source, session)
            is_silent = self._source.random() < SILENT_SHARE and tune_ok(session) in data
            broker = self._broker
            if mutate is pipelined_session and self._source.random() < 0.5:
                broker = self._on_disk
            end = await _attack(broker, data, is_silent)
            if mutate is pipelined_session and end in WITHOUT_CODE - {"close-ok"}:
                end = UNANSWERED
            self.ends[end] += 1
            if self.ends.total() % PROGRESS_EVERY == 0:
                self._progress(self.ends.total(), sessions)


async def _attack(broker: BrokerProcess, data: bytes, is_silent: bool) -> str:
    """How the session ended: the code of the broker's close, or a reason without a code."""
    raw = await Raw.connect(broker.address)
    try:
        raw.send(data)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENCE_SECONDS):
                return await _end(raw) or "end"
        if not is_silent:
            raw.end_output()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDS_SECONDS):
                return await _end(raw) or ("no heartbeat" if is_silent else "left")
        return "nothing, connection kept"
    finally:
        raw.drop()


async def _end(raw: Raw) -> str:
    """The broker's last method, or an empty string."""
    while (method := await _next(raw)) is not None:
        if isinstance(method, commands.Connection.Close):
            return str(method.reply_code)
        if isinstance(method, commands.Connection.CloseOk):
            return "close-ok"
    return ""


async def _next(raw: Raw) -> Any:
    """The next method; skips messages with properties that pamqp cannot decode."""
    while True:
        with contextlib.suppress(UnmarshalingException):
            return await raw.next()


async def fuzz_inside(
    directory: Path, seconds: int, seed: int, progress: Progress = silent
) -> Outcome:
    """Run atheris on the wire, the tables and the content headers in its own process; then round
    trips by hypothesis, and measurements of the worst inputs."""
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
        f"KiB takes {took[slowest]:.1f} ms, one of 1-byte keys {took['wide']:.1f} ms"
    )
    return Outcome("R-32", "fuzzed decoders", figures, (*problems, *worst), tuple(late))


def _write_seeds(directory: Path) -> Path:
    """The corpus of atheris: the frames of the session, alone and together, and a table."""
    directory.mkdir(parents=True)
    frames, at = [], 8
    while at < len(WRITTEN_SESSION):
        size = 8 + struct.unpack_from(">I", WRITTEN_SESSION, at + 3)[0]
        frames.append(WRITTEN_SESSION[at : at + size])
        at += size
    small = [seed_bytes for seed_bytes in frames if len(seed_bytes) < 1_000]
    table = wire.table(*((kind, wire.typed(kind, b"\0" * 8)) for kind in "tbBsuIilfdDTSxVFA"))
    seeds = [WRITTEN_SESSION[:8], WRITTEN_SESSION[:1_000], b"".join(small)[:4_000], *small, table]
    for number, seed_bytes in enumerate(seeds):
        (directory / f"before-{number}").write_bytes(seed_bytes)
        (directory / f"after-{number}").write_bytes(b"\x41" + seed_bytes)
    return directory


def _write_large_seeds(directory: Path) -> Path:
    """As many frames of a kind as fit into 128 KiB, which the wire decodes in portions."""
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
    for number, seed_bytes in enumerate(kinds):
        repeated = seed_bytes * ((LARGE - 1) // len(seed_bytes))
        (directory / f"at-once-{number}").write_bytes(b"\x42" + repeated)
        (directory / f"aside-{number}").write_bytes(b"\x41" + repeated)
    (directory / "login").write_bytes(WRITTEN_SESSION)
    return directory


async def fuzz_decoders(
    directory: Path, kind: str, size: int, seed: int, progress: Progress = silent
) -> tuple[int, str, list[str]]:
    """Run small inputs for a time or a number, and fewer large ones in parallel; the long form has
    two processes with small inputs."""
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


def _inherited_peak_mb() -> int:
    """The peak of memory that a new process inherits from this one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


async def _atheris(
    seeds: Path, limit: str, largest: str, seed: int, progress: Progress
) -> tuple[int, str, list[str]]:
    """(executions, coverage, problems)"""
    began, seconds = time.monotonic(), int(limit.rpartition("=")[2])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.security.atheris_harness",
        limit, f"-seed={seed % 2**31}", f"-rss_limit_mb={_inherited_peak_mb() + 1024}",
        "-timeout=60", f"-artifact_prefix={seeds}-", largest, str(seeds),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    communication = asyncio.create_task(process.communicate())
    while not communication.done():
        progress(min(int(time.monotonic() - began), seconds), seconds)
        await asyncio.wait({communication}, timeout=1)
    output = (await communication)[1].decode(errors="replace")
    runs = re.findall(r"^(?:#|Done )(\d+)(?:\t| runs)", output, re.MULTILINE)
    covered = re.findall(r"cov: (\d+)", output)
    problems = []
    if process.returncode:
        last = [line for line in output.splitlines() if line.strip()][-12:]
        problems.append("atheris found a failure: " + " / ".join(last))
    if not runs:
        problems.append("atheris ran nothing (is it installed? pip install atheris)")
    return int(runs[-1]) if runs else 0, covered[-1] if covered else "?", problems
