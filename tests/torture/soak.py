"""R-23: a long mixed load with kills, alarms and policy changes; nothing is lost, nothing grows.

Kills fall into the first two fifths; the rest is one life of the broker, whose second part (the
last half of the whole run) shows whether memory grows. At the end everything is brought to rest
twice, with messages in the queues and without, and the broker's numbers must add up both times.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from pamqp import commands

from leveret.model.history import EventKind
from tests.torture.client import Client
from tests.torture.mounts import MIB, reserve, small_disk
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.soak_clients import (
    GRAVE,
    LOG,
    LOGGED,
    TRANSIENT,
    Books,
    Life,
    come_and_go,
    publish,
    take,
)
from tests.torture.soak_plan import (
    DURABLE,
    FLOWS,
    GIVING_BACK,
    HABITS,
    KINDS,
    POLICIES,
    WEIGHT,
    declare_all,
)
from tests.torture.soak_sums import Sums, Tally, add_up, differences, in_memory_balance, sums_of
from tests.torture.soak_verdict import judge, judge_memory

PATIENCE = 120.0
FREE_LIMIT = 64 * MIB
SETTINGS = (
    "memory_high_watermark=32MiB",  # the process has more: messages may have half of it
    "queue_window_bytes=64MiB",
    f"disk_free_limit={FREE_LIMIT}",
    "history_max_bytes=64MiB",
    "history_max_age=5m",
)
SHARE_WITH_KILLS = 0.4
GIVE_BACK_SECONDS = 10.0


class Soak:
    def __init__(self, disk: Path, seconds: float, seed: int, progress: Progress) -> None:
        self.seconds, self.progress = seconds, progress
        self.chance = random.Random(seed)
        self.books = Books()
        self.disk = disk
        options = ("--http-port", "0")
        self.broker = BrokerProcess(disk / "d", *options, env={"LEVERET_HTTP_ENABLED": "true"})
        self.broker.settings, self.broker.program = SETTINGS, GIVING_BACK
        self.tally = Tally(disk / "d" / "leveret.db")
        self.done: Counter[str] = Counter()
        self.samples: list[tuple[float, float]] = []
        self._gave_back = 0.0
        self.life: Life
        self.publishing: list[asyncio.Task[None]] = []
        self.taking: list[asyncio.Task[None]] = []
        self.api: httpx.AsyncClient
        self.began = 0.0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    # Lives -------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.broker.start()
        self.api = httpx.AsyncClient(
            base_url=f"http://{self.broker.http}/api", auth=("guest", "guest"), timeout=PATIENCE
        )
        self.life = Life(self.broker.address)
        if not self.began:
            self.began = time.monotonic()
            await declare_all(self.life.address)
            for name, *_ in POLICIES:
                await self._set_policy(name)
        self.books.nacked.clear()
        made = (publish(flow, KINDS, self.books, self.life, self._seed()) for flow in FLOWS)
        self.publishing = [asyncio.create_task(one) for one in made]
        self.publishing.append(asyncio.create_task(come_and_go(self.books, self.life)))
        taking = (take(habit, self.books, self.life, self._seed()) for habit in HABITS)
        self.taking = [asyncio.create_task(one) for one in taking]

    def _seed(self) -> int:
        return self.chance.getrandbits(32)

    async def kill(self) -> None:
        target = self.books.confirmed + self.chance.randint(50, 500)
        await self._until(lambda: self.books.confirmed >= target)
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        await self.api.aclose()
        await self.broker.kill()
        await self._end_clients()
        self.tally.begin_life()
        self.done["kills"] += 1
        await self.start()

    async def _end_clients(self) -> None:
        self.life.over.set()
        await asyncio.gather(*self.publishing, *self.taking)

    # What is done to it ------------------------------------------------------------------------

    async def policy(self) -> None:
        await self._set_policy(self.chance.choice(POLICIES)[0])
        self.done["policy changes"] += 1

    async def _set_policy(self, name: str) -> None:
        pattern, choices = next((p, d) for n, p, d in POLICIES if n == name)
        definition, path = self.chance.choice(choices), f"/policies/%2F/{name}"
        if definition:
            body = {"pattern": pattern, "definition": definition, "apply-to": "queues"}
            answer = await self.api.put(path, json=body)
        else:
            answer = await self.api.delete(path)
        if answer.status_code not in (201, 204, 404):
            self.books.problems.append(f"policy {name}: {answer.status_code} {answer.text[:100]}")

    async def memory(self) -> None:
        """Messages that nobody takes, until publishers are blocked; then they go."""
        client = await Client.connect(self.life.address)
        await client.declare(WEIGHT)
        async with asyncio.timeout(PATIENCE):
            while "memory" not in await self._alarms():
                if client.is_idle:  # it is not read while publishers are blocked
                    client.publish_all("", WEIGHT, [b"x" * 65_536] * 8, TRANSIENT)
                await asyncio.sleep(0.05)
        await self._rest_alarmed("memory")
        other = await Client.connect(self.life.address)
        await other.call(commands.Queue.Delete(queue=WEIGHT), commands.Queue.DeleteOk)
        other.close()
        client.close()
        await self._until_alarms(lambda names: not names)
        self.done["memory alarms"] += 1

    async def disk_alarm(self) -> None:
        ballast = self.disk / "ballast"
        size = shutil.disk_usage(self.disk).free - FREE_LIMIT // 2
        await asyncio.to_thread(reserve, ballast, size)
        await self._rest_alarmed("disk")
        ballast.unlink()
        await self._until_alarms(lambda names: not names)
        self.done["disk alarms"] += 1

    async def _rest_alarmed(self, name: str) -> None:
        await self._until_alarms(lambda names: name in names)
        await asyncio.sleep(self.chance.uniform(0.1, 1.5))

    async def _until_alarms(self, true: Callable[[set[str]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true(names := await self._alarms()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the alarms stay as they are: {names or 'none'}")
            await asyncio.sleep(0.05)

    async def _alarms(self) -> set[str]:
        return {alarm["name"] for alarm in (await self.api.get("/alarms")).json()}

    # The run -----------------------------------------------------------------------------------

    async def run(self) -> None:
        await self.start()
        calm = [self.policy, self.memory, self.disk_alarm]
        await self._steps([self.policy, self.memory], [*calm, self.kill], SHARE_WITH_KILLS)
        await self.kill()
        await self._steps([self.disk_alarm, self.policy], calm, 1.0)
        await self._until(lambda: not self.never_seen(), problem="not everything happened")

    async def _steps(self, first: list[Any], others: list[Any], share: float) -> None:
        longest = 1.5 if self.seconds < 60 else 12.0
        while first or self.elapsed < self.seconds * share:
            await self._watch(self.elapsed + self.chance.uniform(0.5, longest))
            step = first.pop(0) if first else self.chance.choice(others)
            await step()

    async def _watch(self, until: float) -> None:
        while self.elapsed < until:
            await asyncio.sleep(min(1.0, max(0.0, until - self.elapsed)))
            if self.broker.has_ended:
                raise RuntimeError(f"the broker ended by itself: {self.broker.said()[-500:]}")
            await asyncio.to_thread(self.tally.look)
            if self.elapsed > self.seconds / 2:
                self._weigh()
            self.progress(min(int(self.elapsed), int(self.seconds)), int(self.seconds))

    def _weigh(self) -> None:
        self.samples.append((self.elapsed, self.broker.memory("VmRSS")))
        if self.elapsed - self._gave_back > GIVE_BACK_SECONDS:
            self._gave_back = self.elapsed
            os.kill(self.broker.pid, signal.SIGUSR1)

    async def _until(self, true: Callable[[], bool], problem: str = "") -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not true():
                    await self._watch(self.elapsed + 0.1)
        except TimeoutError:
            self.books.problems.append(problem or "nothing is confirmed any more")

    def never_seen(self) -> list[str]:
        """Ways to leave a queue that none has gone yet."""
        ever, refused = self.tally.ever, self.books.nacked["refusing"]
        ways = {
            "expired": ever["expiring", EventKind.EXPIRED],
            "dropped": ever["bounded", EventKind.DROPPED],
            "dead-lettered": ever["doomed", EventKind.DEAD_LETTERED],
            "refused": refused,
        }
        return [way for way, count in ways.items() if not count]

    # Rest, and the verdict ---------------------------------------------------------------------

    async def finish(self) -> tuple[Sums, Sums]:
        """What all queues held when publishers had stopped, and when all was taken."""
        self.life.held = True
        await asyncio.sleep(0.5)  # some more comes in
        self.life.still.set()
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*self.publishing)
        except TimeoutError:
            self.books.problems.append("publishers wait for confirms that do not come")
        full = await self._balanced(lambda _: True)
        self.life.held = False
        empty = await self._balanced(lambda sums: not sums.ready and not sums.unacked)
        log = (await self.api.get(f"/logs/%2F/{LOG}")).json()
        seen = self.books.ledgers[LOGGED].seen
        await self._wait_for(lambda: len(seen) >= log["messages"])
        if len(seen) != log["messages"]:
            self.books.problems.append(f"{LOG}: {log['messages']} held, {len(seen)} delivered")
        await self._end_clients()
        await self.api.aclose()
        await self.broker.stop()
        return full, empty

    async def _wait_for(self, true: Callable[[], bool]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not true():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    async def _balanced(self, true: Callable[[Sums], bool]) -> Sums:
        """The sums, once they agree; what does not agree in the end is a problem."""
        deadline, least = time.monotonic() + PATIENCE, 1 << 60
        while True:
            rows = {row["name"]: row for row in (await self.api.get("/queues/%2F")).json()}
            await asyncio.to_thread(self.tally.look)
            each = sums_of(self.tally, rows, DURABLE)
            whole = add_up(each)
            wrong = [f"does not add up: {one}" for one in each if one.balance]
            wrong += differences(self.tally, rows, DURABLE, self.books.nacked)
            wrong += self._of_others(rows)
            if not wrong and true(whole):
                return whole
            if whole.ready < least:
                least, deadline = whole.ready, time.monotonic() + PATIENCE
            if time.monotonic() > deadline:
                self.books.problems += wrong or [f"not at rest: {whole}"]
                return whole
            await asyncio.sleep(0.2)

    def _of_others(self, rows: dict[str, Any]) -> list[str]:
        ever, off = self.tally.ever, in_memory_balance(rows["flying"])
        wrong = [f"flying: {off} are neither there nor delivered"] if off else []
        sent, came = ever["doomed", EventKind.DEAD_LETTERED], ever[GRAVE, EventKind.ENQUEUED]
        return [*wrong, f"{sent} dead-lettered, {came} came"] if sent != came else wrong


async def soak(directory: Path, seconds: int, seed: int, progress: Progress = silent) -> Outcome:
    with small_disk(directory, "ext4", 256 * MIB + seconds * MIB // 2) as disk:
        run = Soak(disk, seconds, seed, progress)
        try:
            await run.run()
            full, empty = await run.finish()
        finally:
            for task in (*run.publishing, *run.taking):
                task.cancel()
    words = judge(run.books, run.tally)
    memory = judge_memory(run.books, run.samples, seconds)
    run.books.problems += [f"nothing was {way}" for way in run.never_seen()]
    done = ", ".join(f"{count} {what}" for what, count in sorted(run.done.items()))
    figures = (
        f"{run.elapsed:.0f} s, {done}, {run.books.connections} connections; {words}; "
        f"at rest with messages: {full}; empty: {empty}; {memory}"
    )
    return Outcome("R-23", "long soak", figures, tuple(run.books.problems[:20]))
