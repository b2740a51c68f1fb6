"""R-25: kill -9 of the members of a consumer group and of the broker.

Every record that was confirmed is processed by somebody; committed offsets never go back and never
pass what somebody has processed; only what was in flight comes again; no offset is used twice.

Members are programs with real clients (`tests/log/member.py`), each with a file of what it has
processed; a line is written before its ack is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pika

from tests.support.brokers import ROOT
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.waiting import until

PARTITIONS = 3
PREFETCH = 20
ROUND = 60
STREAM = {"x-queue-type": "stream", "x-partitions": PARTITIONS}
Noted = tuple[int, int, int]


class Crew:
    """Member processes, each with a file of what it has processed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, port: int) -> None:
        self._count += 1
        path = self._directory / f"member-{self._count}"
        program = [sys.executable, str(ROOT / "tests/log/member.py"), str(port), str(path)]
        process = subprocess.Popen([*program, f"member-{self._count}"], stderr=subprocess.DEVNULL)
        self.processes.append(process)

    def kill_one(self, chance: random.Random) -> None:
        victim = self.processes.pop(chance.randrange(len(self.processes)))
        victim.kill()
        victim.wait()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()

    def processed(self) -> list[Noted]:
        """(partition, offset, number) as noted; a line cut off by a kill does not count."""
        found = []
        for path in sorted(self._directory.glob("member-*")):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    partition, offset, number = map(int, line.split())
                    found.append((partition, offset, number))
        return found


class GroupRun:
    def __init__(self, directory: Path, seed: int) -> None:
        self.crew = Crew(directory)
        self.problems: list[str] = []
        self.sent = 0
        self._chance = random.Random(seed)
        self._data = directory / "data"
        self._broker = BrokerProcess(self._data)
        self._committed = dict.fromkeys(range(PARTITIONS), 0)

    async def cycle(self) -> None:
        """Kill a member while records flow, then the broker, then all others."""
        await self._broker.start()
        port = self._broker.address[1]
        while len(self.crew.processes) < PARTITIONS:
            self.crew.start(port)
        await asyncio.to_thread(self._publish, port)
        self.crew.kill_one(self._chance)
        self.crew.start(port)
        await asyncio.to_thread(self._publish, port)
        await asyncio.sleep(self._chance.choice((0.0, 0.05, 0.3)))
        await self._broker.kill()
        self.crew.stop()
        self._check_commits()

    async def finish(self) -> None:
        """Two members more, until everything was processed."""
        await self._broker.start()
        for _ in range(2):
            self.crew.start(self._broker.address[1])
        everything = set(range(self.sent))
        try:
            await until(lambda: {n for _, _, n in self.crew.processed()} >= everything, 60)
        except TimeoutError:
            missing = everything - {n for _, _, n in self.crew.processed()}
            self.problems.append(f"{len(missing)} records never came: {sorted(missing)[:5]}")
        self.crew.stop()
        await self._broker.stop()

    def _publish(self, port: int) -> None:
        """Numbers, each confirmed before this returns."""
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True, arguments=STREAM)
            for number in range(self.sent, self.sent + ROUND):
                channel.basic_publish("orders", f"key-{number % 13}", b"%d" % number)
        self.sent += ROUND

    def _check_commits(self) -> None:
        query = """
            SELECT substr(q.name, -1), o."offset" FROM group_offsets o
            JOIN queues q ON q.id = o.queue_id WHERE o.group_name = 'G'
        """
        with contextlib.closing(sqlite3.connect(self._data / "leveret.db")) as database:
            now = {int(number): int(offset) for number, offset in database.execute(query)}
        ends = dict.fromkeys(self._committed, 0)
        for partition, offset, _ in self.crew.processed():
            ends[partition] = max(ends[partition], offset + 1)
        for partition, before in self._committed.items():
            offset = now.get(partition, 0)
            if offset < before:
                self.problems.append(
                    f"partition {partition}: commit went from {before} to {offset}"
                )
            if offset > ends[partition]:
                self.problems.append(f"partition {partition}: {offset} committed, not processed")
            self._committed[partition] = offset

    def judge(self, kills: int) -> str:
        """Figures; what is wrong becomes a problem."""
        noted = self.crew.processed()
        places: dict[tuple[int, int], int] = {}
        for partition, offset, number in noted:
            if places.setdefault((partition, offset), number) != number:
                self.problems.append(f"offset {offset} of partition {partition} was used twice")
        if sorted(places.values()) != list(range(self.sent)):
            self.problems.append("a record is stored twice, or not at all")
        for partition in range(PARTITIONS):
            offsets = sorted(offset for p, offset in places if p == partition)
            if offsets != list(range(len(offsets))):
                self.problems.append(f"partition {partition} has gaps")
        repeats = len(noted) - len(places)
        if repeats > kills * (PARTITIONS + 1) * PREFETCH:
            self.problems.append(f"{repeats} repeats: more than was in flight")
        return f"{kills} kills, {self.sent} confirmed, {repeats} processed again"


async def kill_members_and_broker(
    directory: Path, kills: int, seed: int, progress: Progress = silent
) -> Outcome:
    run = GroupRun(directory, seed)
    cycles = max(1, kills // 2)
    try:
        for done in range(cycles):
            await run.cycle()
            progress(2 * done + 2, 2 * cycles)
        await run.finish()
    finally:
        run.crew.stop()
    figures = run.judge(2 * cycles)
    return Outcome("R-25", "consumer groups", figures, tuple(run.problems[:20]))
