"""R-32: the decoders, guided by coverage (atheris). R-33: recorded sessions, mutated, over sockets.

A mutated session may be refused anywhere, but the broker must go on, in memory it had before, and
its log must be free of tracebacks; a canary logs in all the while.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

from pamqp import commands

from tests.semantics.test_fragments import closing, opening
from tests.semantics.test_hostile_bytes import mutated
from tests.support.brokers import Target
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import Raw, log_in_seconds, percentile

RECORDED = opening(Target("127.0.0.1", 0)) + closing()
AT_ONCE = 50
CANARY_EVERY = 200
SILENCE_SECONDS = 0.5
ALLOWED = {501, 502, 503, 504, 505, 530, 540}
SOFT = {200, 311, 320, 403, 404, 405, 406}
"""Mutations often leave sense behind: a session that is refused or ends as any other."""


async def fuzz_live(
    directory: Path, sessions: int, seed: int, progress: Progress = silent
) -> Outcome:
    broker = BrokerProcess(directory, "--memory")
    broker.settings = ("login_tries_per_source=0", "log_level=error")
    await broker.start()
    source = random.Random(seed)
    quiet = [await log_in_seconds(broker.address) for _ in range(20)]
    await _volley(broker, source, AT_ONCE)
    before = broker.memory("VmRSS")
    ends: Counter[str] = Counter()
    canary: list[float] = []
    for done in range(0, sessions, AT_ONCE):
        ends += await _volley(broker, source, AT_ONCE)
        if done % CANARY_EVERY < AT_ONCE:
            canary.append(await log_in_seconds(broker.address))
        progress(done + AT_ONCE, sessions)
    growth = broker.memory("VmRSS") - before
    await broker.stop()  # it looks for tracebacks in the log
    problems = [f"ended with {end}" for end in ends if end not in _fine()]
    if growth > 20:
        problems.append(f"{growth:.1f} MB more")
    if float("inf") in canary:
        problems.append("a canary was refused")
    figures = (
        f"{sessions} mutated sessions ended {dict(ends.most_common(8))}, {growth:+.1f} MB; "
        f"canary p99 {percentile(canary, 0.99) * 1000:.0f} ms "
        f"({percentile(quiet, 0.5) * 1000:.0f} ms alone)"
    )
    return Outcome("R-33", "mutated sessions", figures, tuple(problems))


def _fine() -> set[str]:
    return {"end", "silence", *(str(code) for code in ALLOWED | SOFT)}


async def _volley(broker: BrokerProcess, source: random.Random, count: int) -> Counter[str]:
    octets = [mutated(source, RECORDED) for _ in range(count)]
    return Counter(await asyncio.gather(*(_attack(broker, one) for one in octets)))


async def _attack(broker: BrokerProcess, octets: bytes) -> str:
    """How the broker ended it: the code of its close, a plain end, or its patience with silence."""
    raw = await Raw.connect(broker.address)
    try:
        raw.send(octets)
        async with asyncio.timeout(SILENCE_SECONDS):
            while (said := await raw.next()) is not None:
                if isinstance(said, commands.Connection.Close):
                    return str(said.reply_code)
        return "end"
    except TimeoutError:
        return "silence"
    finally:
        raw.drop()


async def fuzz_inside(
    _directory: Path, seconds: int, seed: int, progress: Progress = silent
) -> Outcome:
    """atheris on the wire, the tables and the content headers, in a process of its own."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.security.atheris_harness",
        f"-max_total_time={seconds}", f"-seed={seed % 2**31}", "-rss_limit_mb=1024", "-timeout=5",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    talk = asyncio.create_task(process.communicate())
    while not talk.done():
        progress(min(int(time.monotonic() - began), seconds), seconds)
        await asyncio.wait({talk}, timeout=1)
    said = (await talk)[1].decode(errors="replace")
    runs = re.findall(r"^#(\d+)\t", said, re.MULTILINE)
    covered = re.findall(r"cov: (\d+)", said)
    problems = []
    if process.returncode:
        last = [line for line in said.splitlines() if line.strip()][-12:]
        problems.append("atheris found something: " + " / ".join(last))
    if not runs:
        problems.append("atheris ran nothing (is it installed? pip install atheris)")
    figures = (
        f"{runs[-1] if runs else 0} executions in {seconds} s, coverage "
        f"{covered[-1] if covered else '?'}: only declared errors escaped"
    )
    return Outcome("R-32", "fuzzed decoders", figures, tuple(problems))
