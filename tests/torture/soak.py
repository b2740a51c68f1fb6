"""R-23: a long mixed load with kills, alarms and policy changes loses nothing and leaks nothing.

Kills happen in the first two fifths. After that one broker process runs to the end; the last half
of the whole run shows whether memory grows. At the end the load stops twice, with messages in the
queues and without, and the broker's counters must be consistent both times.
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
from tests.support.polling import wait_until_async
from tests.torture.client import Client
from tests.torture.mounts import MIB, reserve, small_disk
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.soak_clients import (
    DEAD_LETTER_QUEUE,
    LOG,
    LOGGED,
    TRANSIENT,
    BrokerRun,
    Observations,
    consume,
    open_and_close_connections,
    publish,
)
from tests.torture.soak_plan import (
    CONSUMERS,
    DURABLE,
    KINDS,
    MEMORY_FILLER,
    POLICIES,
    PUBLISHERS,
    TRIMMING_MALLOC,
    declare_all,
)
from tests.torture.soak_sums import (
    EventCounts,
    Sums,
    add_up,
    differences,
    in_memory_balance,
    sums_of,
)
from tests.torture.soak_verdict import judge, judge_memory

DEADLINE_SECONDS = 120.0
FREE_LIMIT = 64 * MIB
SETTINGS = (
    "memory_high_watermark=32MiB",  # less than the process uses: messages may have half of it
    "queue_window_bytes=64MiB",
    f"disk_free_limit={FREE_LIMIT}",
    "history_max_bytes=64MiB",
    "history_max_age=5m",
)
SHARE_WITH_KILLS = 0.4
TRIM_SECONDS = 10.0


class Soak:
    def __init__(self, disk: Path, seconds: float, seed: int, progress: Progress) -> None:
        self.seconds, self.progress = seconds, progress
        self.rng = random.Random(seed)
        self.observations = Observations()
        self.disk = disk
        options = ("--http-port", "0")
        self.broker = BrokerProcess(disk / "d", *options, env={"LEVERET_HTTP_ENABLED": "true"})
        self.broker.settings, self.broker.program = SETTINGS, TRIMMING_MALLOC
        self.event_counts = EventCounts(disk / "d" / "leveret.db")
        self.done: Counter[str] = Counter()
        self.samples: list[tuple[float, float]] = []
        self._trimmed_at = 0.0
        self.broker_run: BrokerRun
        self.publishing: list[asyncio.Task[None]] = []
        self.consuming: list[asyncio.Task[None]] = []
        self.api: httpx.AsyncClient
        self.began = 0.0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    # Broker runs -------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.broker.start()
        self.api = httpx.AsyncClient(
            base_url=f"http://{self.broker.http}/api",
            auth=("guest", "guest"),
            timeout=DEADLINE_SECONDS,
        )
        self.broker_run = BrokerRun(self.broker.address)
        if not self.began:
            self.began = time.monotonic()
            await declare_all(self.broker_run.address)
            for name, *_ in POLICIES:
                await self._set_policy(name)
        self.observations.nacked.clear()
        publishers = (
            publish(plan, KINDS, self.observations, self.broker_run, self._seed())
            for plan in PUBLISHERS
        )
        self.publishing = [asyncio.create_task(client) for client in publishers]
        self.publishing.append(
            asyncio.create_task(open_and_close_connections(self.observations, self.broker_run))
        )
        consuming = (
            consume(plan, self.observations, self.broker_run, self._seed()) for plan in CONSUMERS
        )
        self.consuming = [asyncio.create_task(client) for client in consuming]

    def _seed(self) -> int:
        return self.rng.getrandbits(32)

    async def kill(self) -> None:
        target = self.observations.confirmed + self.rng.randint(50, 500)
        await self._until(lambda: self.observations.confirmed >= target)
        await asyncio.sleep(self.rng.uniform(0, 0.1))
        await self.api.aclose()
        await self.broker.kill()
        await self._end_clients()
        self.event_counts.begin_run()
        self.done["kills"] += 1
        await self.start()

    async def _end_clients(self) -> None:
        self.broker_run.ended.set()
        await asyncio.gather(*self.publishing, *self.consuming)

    # Disturbances ------------------------------------------------------------------------------

    async def policy(self) -> None:
        await self._set_policy(self.rng.choice(POLICIES)[0])
        self.done["policy changes"] += 1

    async def _set_policy(self, name: str) -> None:
        pattern, choices = next((p, d) for n, p, d in POLICIES if n == name)
        definition, path = self.rng.choice(choices), f"/policies/%2F/{name}"
        if definition:
            body = {"pattern": pattern, "definition": definition, "apply-to": "queues"}
            answer = await self.api.put(path, json=body)
        else:
            answer = await self.api.delete(path)
        if answer.status_code not in (201, 204, 404):
            self.observations.problems.append(
                f"policy {name}: {answer.status_code} {answer.text[:100]}"
            )

    async def memory(self) -> None:
        """Publish to a queue without consumers until publishers are blocked; then delete it."""
        client = await Client.connect(self.broker_run.address)
        await client.declare(MEMORY_FILLER)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while "memory" not in await self._alarms():
                if client.is_idle:  # the connection is not read while publishers are blocked
                    client.publish_all("", MEMORY_FILLER, [b"x" * 65_536] * 8, TRANSIENT)
                await asyncio.sleep(0.05)
        await self._wait_while_alarmed("memory")
        other = await Client.connect(self.broker_run.address)
        await other.call(commands.Queue.Delete(queue=MEMORY_FILLER), commands.Queue.DeleteOk)
        other.close()
        client.close()
        await self._until_alarms(lambda names: not names)
        self.done["memory alarms"] += 1

    async def disk_alarm(self) -> None:
        ballast = self.disk / "ballast"
        size = shutil.disk_usage(self.disk).free - FREE_LIMIT // 2
        await asyncio.to_thread(reserve, ballast, size)
        await self._wait_while_alarmed("disk")
        ballast.unlink()
        await self._until_alarms(lambda names: not names)
        self.done["disk alarms"] += 1

    async def _wait_while_alarmed(self, name: str) -> None:
        await self._until_alarms(lambda names: name in names)
        await self._read_events_for(self.rng.uniform(0.1, 1.5))

    async def _until_alarms(self, condition: Callable[[set[str]], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition(names := await self._alarms()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the alarms did not change: {names or 'none'}")
            await self._read_events_for(0.05)

    async def _read_events_for(self, seconds: float) -> None:
        """Read often: while the disk is nearly full, events are deleted soon."""
        until = time.monotonic() + seconds
        while True:
            await asyncio.to_thread(self.event_counts.update)
            if time.monotonic() >= until:
                return
            await asyncio.sleep(0.02)

    async def _alarms(self) -> set[str]:
        return {alarm["name"] for alarm in (await self.api.get("/alarms")).json()}

    # The run -----------------------------------------------------------------------------------

    async def run(self) -> None:
        await self.start()
        calm = [self.policy, self.memory, self.disk_alarm]
        await self._steps([self.policy, self.memory], [*calm, self.kill], SHARE_WITH_KILLS)
        await self.kill()
        await self._steps([self.disk_alarm, self.policy], calm, 1.0)
        await self._until(lambda: not self.missing_outcomes(), problem="not everything happened")

    async def _steps(self, first: list[Any], others: list[Any], share: float) -> None:
        longest = 1.5 if self.seconds < 60 else 12.0
        while first or self.elapsed < self.seconds * share:
            await self._watch(self.elapsed + self.rng.uniform(0.5, longest))
            step = first.pop(0) if first else self.rng.choice(others)
            await step()

    async def _watch(self, until: float) -> None:
        while self.elapsed < until:
            await asyncio.sleep(min(1.0, max(0.0, until - self.elapsed)))
            if self.broker.has_ended:
                raise RuntimeError(f"the broker ended by itself: {self.broker.log_tail()[-500:]}")
            await asyncio.to_thread(self.event_counts.update)
            if self.elapsed > self.seconds / 2:
                self._sample_memory()
            self.progress(min(int(self.elapsed), int(self.seconds)), int(self.seconds))

    def _sample_memory(self) -> None:
        self.samples.append((self.elapsed, self.broker.memory("VmRSS")))
        if self.elapsed - self._trimmed_at > TRIM_SECONDS:
            self._trimmed_at = self.elapsed
            os.kill(self.broker.pid, signal.SIGUSR1)

    async def _until(self, condition: Callable[[], bool], problem: str = "") -> None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not condition():
                    await self._watch(self.elapsed + 0.1)
        except TimeoutError:
            self.observations.problems.append(problem or "no more messages are confirmed")

    def missing_outcomes(self) -> list[str]:
        """Ways to leave a queue that no message has taken yet."""
        ever, refused = self.event_counts.ever, self.observations.nacked["refusing"]
        outcomes = {
            "expired": ever["expiring", EventKind.EXPIRED],
            "dropped": ever["bounded", EventKind.DROPPED],
            "dead-lettered": ever["dead-lettering", EventKind.DEAD_LETTERED],
            "refused": refused,
        }
        return [outcome for outcome, count in outcomes.items() if not count]

    # End of the load, and the verdict ----------------------------------------------------------

    async def finish(self) -> tuple[Sums, Sums]:
        """Sums after the publishers stopped, and after all messages were consumed."""
        self.broker_run.consumers_paused = True
        await asyncio.sleep(0.5)  # a few more messages arrive
        self.broker_run.publishers_stopped.set()
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await asyncio.gather(*self.publishing)
        except TimeoutError:
            self.observations.problems.append("publishers wait for confirms in vain")
        full = await self._balanced(lambda _: True)
        self.broker_run.consumers_paused = False
        empty = await self._balanced(lambda sums: not sums.ready and not sums.unacked)
        log = (await self.api.get(f"/logs/%2F/{LOG}")).json()
        seen = self.observations.ledgers[LOGGED].seen
        await self._wait_for(lambda: len(seen) >= log["messages"])
        if len(seen) != log["messages"]:
            self.observations.problems.append(
                f"{LOG}: {log['messages']} held, {len(seen)} delivered"
            )
        await self._end_clients()
        await self.api.aclose()
        await self.broker.stop()
        return full, empty

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        with suppress(AssertionError):
            await wait_until_async(condition, DEADLINE_SECONDS)

    async def _balanced(self, condition: Callable[[Sums], bool]) -> Sums:
        """The sums as soon as they balance; sums that never balance are a problem."""
        deadline, least = time.monotonic() + DEADLINE_SECONDS, 1 << 60
        while True:
            rows = {row["name"]: row for row in (await self.api.get("/queues/%2F")).json()}
            await asyncio.to_thread(self.event_counts.update)
            each = sums_of(self.event_counts, rows, DURABLE)
            total = add_up(each)
            wrong = [f"does not balance: {sums}" for sums in each if sums.balance]
            wrong += differences(self.event_counts, rows, DURABLE, self.observations.nacked)
            wrong += self._other_problems(rows)
            if not self.event_counts.is_complete:
                wrong = []
            if not wrong and condition(total):
                return total
            if total.ready < least:
                least, deadline = total.ready, time.monotonic() + DEADLINE_SECONDS
            if time.monotonic() > deadline:
                self.observations.problems += wrong or [f"still changing: {total}"]
                return total
            await asyncio.sleep(0.2)

    def _other_problems(self, rows: dict[str, Any]) -> list[str]:
        ever, off = self.event_counts.ever, in_memory_balance(rows["in-memory"])
        wrong = [f"in-memory: {off} are neither in the queue nor delivered"] if off else []
        sent, enqueued = (
            ever["dead-lettering", EventKind.DEAD_LETTERED],
            ever[DEAD_LETTER_QUEUE, EventKind.ENQUEUED],
        )
        return [*wrong, f"{sent} dead-lettered, {enqueued} enqueued"] if sent != enqueued else wrong


async def soak(directory: Path, seconds: int, seed: int, progress: Progress = silent) -> Outcome:
    with small_disk(directory, "ext4", 256 * MIB + seconds * MIB // 2) as disk:
        run = Soak(disk, seconds, seed, progress)
        try:
            await run.run()
            full, empty = await run.finish()
        finally:
            for task in (*run.publishing, *run.consuming):
                task.cancel()
    words = judge(run.observations, run.event_counts)
    memory = judge_memory(run.observations, run.samples, seconds)
    run.observations.problems += [
        f"nothing was {outcome_name}" for outcome_name in run.missing_outcomes()
    ]
    done = ", ".join(f"{count} {action}" for action, count in sorted(run.done.items()))
    if not run.event_counts.is_complete:
        words += "; sums not judged: events were deleted before they were counted"
    figures = (
        f"{run.elapsed:.0f} s, {done}, {run.observations.connections} connections; {words}; "
        f"stopped with messages: {full}; empty: {empty}; {memory}"
    )
    return Outcome("R-23", "long soak", figures, tuple(run.observations.problems[:20]))
