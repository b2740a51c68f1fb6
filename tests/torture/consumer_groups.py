"""R-25: kill -9 of members of two consumer groups and of the broker.

Every confirmed record is processed; committed offsets never decrease and never pass what was
processed; only records in flight are processed again; no offset is used twice. The members of the
second group use transactions: each record has exactly one output in a log and one in a queue,
although members also join and leave all the time, so that transactions meet rebalances.

Members are programs with real clients. Each of the first group (`tests/log/member.py`) has a file
of the records it has processed; a line is written before the ack is sent. Those of the second group
(`tests/log/tx_member.py`) publish their outputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pika

from tests.support.brokers import ROOT
from tests.support.polling import wait_until_async
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

PARTITIONS = 3
PREFETCH = 20
ROUND = 60
STREAM = {"x-queue-type": "stream", "x-partitions": PARTITIONS}
OUTPUTS = {"invoices": [f"invoices-{n}" for n in range(PARTITIONS)], "audit": ["audit"]}
"""Where transactional members write, with the queues that hold it."""
Noted = tuple[int, int, int]


class MemberProcesses:
    """The members of one group, each a process."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._running: list[subprocess.Popen[bytes]] = []
        self.failures: list[str] = []
        """Errors of members that ended although neither they nor the broker were killed."""

    def __len__(self) -> int:
        return len(self._running)

    def launch(self, *arguments: object) -> None:
        command = [sys.executable, str(ROOT / self._program), *map(str, arguments)]
        self._running.append(subprocess.Popen(command, stderr=subprocess.PIPE))

    def kill_one(self, rng: random.Random) -> None:
        self._end(self._running.pop(rng.randrange(len(self._running))))

    def stop(self) -> None:
        while self._running:
            self._end(self._running.pop())

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        _, errors = process.communicate()
        if process.returncode > 0:
            self.failures.append(f"{self._program} failed: {errors.decode()[-300:]}")


class Members(MemberProcesses):
    """Members with acks, each with a file of the records it has processed."""

    def __init__(self, directory: Path) -> None:
        super().__init__("tests/log/member.py")
        self._directory = directory
        self._count = 0

    def start(self, port: int) -> None:
        self._count += 1
        name = f"member-{self._count}"
        self.launch(port, self._directory / name, name)

    def processed(self) -> list[Noted]:
        """(partition, offset, number) of every complete line; a kill may cut a line off."""
        lines = []
        for path in sorted(self._directory.glob("member-*")):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    partition, offset, number = map(int, line.split())
                    lines.append((partition, offset, number))
        return lines


class GroupRun:
    def __init__(self, directory: Path, seed: int) -> None:
        self.members = Members(directory)
        self.tx_members = MemberProcesses("tests/log/tx_member.py")
        self.problems: list[str] = []
        self.sent = 0
        self.repeated_outputs = 0
        self._chance = random.Random(seed)
        self._data = directory / "data"
        self._broker = BrokerProcess(self._data)
        self._committed = dict.fromkeys(range(PARTITIONS), 0)

    async def cycle(self) -> None:
        """Kill a member while records arrive, then the broker, then all other members."""
        await self._broker.start()
        port = self._broker.address[1]
        await asyncio.to_thread(self._publish, port)
        while len(self.members) < PARTITIONS:
            self.members.start(port)
            self._start_tx_member(port)
        await asyncio.to_thread(self._publish, port)
        self.members.kill_one(self._chance)
        self.members.start(port)
        self.tx_members.kill_one(self._chance)
        self._start_tx_member(port)
        await asyncio.to_thread(self._publish, port)
        await asyncio.sleep(self._chance.choice((0.0, 0.05, 0.3)))
        await self._broker.kill()
        self._stop_members()
        self._check_commits()

    def _start_tx_member(self, port: int) -> None:
        self.tx_members.launch(port, self._chance.randrange(1 << 30))

    def _stop_members(self) -> None:
        for group in (self.members, self.tx_members):
            group.stop()
            self.problems += group.failures
            group.failures.clear()

    async def finish(self) -> None:
        """Start two more members of each group and wait until everything is processed."""
        await self._broker.start()
        port = self._broker.address[1]
        for _ in range(2):
            self.members.start(port)
            self._start_tx_member(port)
        everything = set(range(self.sent))
        try:
            await wait_until_async(
                lambda: {n for _, _, n in self.members.processed()} >= everything, 60
            )
        except AssertionError:
            missing = everything - {n for _, _, n in self.members.processed()}
            self.problems.append(
                f"{len(missing)} records were never processed: {sorted(missing)[:5]}"
            )
        await self._check_outputs(port)
        self._stop_members()
        await self._broker.stop()

    async def _check_outputs(self, port: int) -> None:
        """Every record has one output in the log and one in the queue."""
        try:
            await wait_until_async(lambda: sum(self._offsets("T").values()) == self.sent, 60)
        except AssertionError:
            self.problems.append(f"group T: {self._offsets('T')} of {self.sent} records committed")
        for name in OUTPUTS:
            numbers = Counter(await asyncio.to_thread(_read_all, port, name))
            missing, repeats = self.sent - len(numbers), numbers.total() - len(numbers)
            self.repeated_outputs += repeats
            if missing or repeats:
                self.problems.append(f"{name}: {missing} outputs missing, {repeats} duplicated")

    def _publish(self, port: int) -> None:
        """Publish numbers; return when all are confirmed."""
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True, arguments=STREAM)
            channel.queue_declare("invoices", durable=True, arguments=STREAM)
            channel.queue_declare("audit", durable=True)
            for number in range(self.sent, self.sent + ROUND):
                channel.basic_publish("orders", f"key-{number % 13}", b"%d" % number)
        self.sent += ROUND

    def _offsets(self, group: str) -> dict[int, int]:
        """The committed offsets of a group, by partition."""
        query = """
            SELECT substr(q.name, -1), o."offset" FROM group_offsets o
            JOIN queues q ON q.id = o.queue_id WHERE o.group_name = ?
        """
        with contextlib.closing(sqlite3.connect(self._data / "leveret.db")) as database:
            rows = database.execute(query, (group,))
            return {int(number): int(offset) for number, offset in rows}

    def _check_commits(self) -> None:
        now = self._offsets("G")
        ends = dict.fromkeys(self._committed, 0)
        for partition, offset, _ in self.members.processed():
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
        """Return the figures and add problems."""
        noted = self.members.processed()
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
            self.problems.append(f"{repeats} repeats: more than were in flight")
        return (
            f"{kills} kills, {self.sent} confirmed, {repeats} processed again; "
            f"in transactions {self.repeated_outputs} outputs duplicated"
        )


def _read_all(port: int, name: str) -> list[int]:
    """The numbers in a log or a queue."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1000)
        declared = [channel.queue_declare(part, passive=True) for part in OUTPUTS[name]]
        count = sum(answer.method.message_count for answer in declared)
        is_log = OUTPUTS[name] != [name]
        offset = {"x-stream-offset": "first"} if is_log else {}  # a queue refuses an offset
        records = channel.consume(name, arguments=offset)
        numbers = []
        for method, _, body in itertools.islice(records, count):
            numbers.append(int(body))
            channel.basic_ack(method.delivery_tag)
        return numbers


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
        run.members.stop()
        run.tx_members.stop()
    figures = run.judge(2 * cycles)
    return Outcome("R-25", "consumer groups", figures, tuple(run.problems[:20]))
