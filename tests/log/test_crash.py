"""kill -9 of members and of the broker: nothing confirmed is lost, nothing is skipped, commits
never go back and never run ahead (reliability R-25, a short form of it)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pika
import pika.exceptions

from tests.log.conftest import STREAM
from tests.support.brokers import ROOT, running_leveret

CYCLES = 4
PARTITIONS = 3
WITHIN = 30.0


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

    def kill_one(self, dice: random.Random) -> None:
        victim = self.processes.pop(dice.randrange(len(self.processes)))
        victim.kill()
        victim.wait()

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()

    def processed(self) -> list[tuple[int, int, int]]:
        """(partition, offset, number) as noted; a line cut off by a kill does not count."""
        found = []
        for path in sorted(self._directory.glob("member-*")):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    partition, offset, number = map(int, line.split())
                    found.append((partition, offset, number))
        return found


def publish(port: int, start: int, count: int) -> None:
    """Numbers, each confirmed before this returns."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        arguments = {**STREAM, "x-partitions": PARTITIONS}
        channel.queue_declare("orders", durable=True, arguments=arguments)
        for number in range(start, start + count):
            channel.basic_publish("orders", f"key-{number % 13}", b"%d" % number)


def wait_until(crew: Crew, numbers: set[int]) -> None:
    deadline = time.monotonic() + WITHIN
    while missing := numbers - {number for _, _, number in crew.processed()}:
        assert time.monotonic() < deadline, f"{len(missing)} records never came: {missing}"
        time.sleep(0.05)


def test_killed_members_and_brokers_lose_nothing(tmp_path):
    dice = random.Random(25)
    crew = Crew(tmp_path)
    data = ("--data-dir", str(tmp_path / "data"))
    sent = 0
    committed = dict.fromkeys(range(PARTITIONS), 0)
    try:
        for _ in range(CYCLES):
            with running_leveret(*data, environment={"LEVERET_HTTP_ENABLED": "false"}) as target:
                while len(crew.processes) < PARTITIONS:
                    crew.start(target.port)
                publish(target.port, sent, 60)
                sent += 60
                crew.kill_one(dice)
                crew.start(target.port)
                publish(target.port, sent, 60)
                sent += 60
                os.kill(target.pid, signal.SIGKILL)
            crew.stop()
            committed = check_commits(tmp_path / "data", committed, crew)
        with running_leveret(*data, environment={"LEVERET_HTTP_ENABLED": "false"}) as target:
            crew.start(target.port)
            crew.start(target.port)
            wait_until(crew, set(range(sent)))
        crew.stop()
    finally:
        crew.stop()
    check(crew.processed(), sent)


def check_commits(data: Path, before: dict[int, int], crew: Crew) -> dict[int, int]:
    """Committed offsets only rise, and never past what somebody has processed."""
    query = """
        SELECT substr(q.name, -1), o."offset" FROM group_offsets o
        JOIN queues q ON q.id = o.queue_id WHERE o.group_name = 'G'
    """
    with contextlib.closing(sqlite3.connect(data / "leveret.db")) as database:
        now = {int(number): int(offset) for number, offset in database.execute(query)}
    ends = {p: 1 + max((o for q, o, _ in crew.processed() if q == p), default=-1) for p in before}
    for partition, offset in before.items():
        assert offset <= now.get(partition, 0) <= ends[partition]
    return now


def check(processed: list[tuple[int, int, int]], sent: int) -> None:
    places: dict[tuple[int, int], int] = {}
    for partition, offset, number in processed:
        assert places.setdefault((partition, offset), number) == number, "an offset was reused"
    assert sorted(places.values()) == list(range(sent)), "stored twice, or not at all"
    for partition in range(PARTITIONS):
        offsets = sorted(o for p, o in places if p == partition)
        assert offsets == list(range(len(offsets)))
    repeats = len(processed) - len(places)
    assert repeats <= CYCLES * (2 * PARTITIONS + 1) * 20, "more than what was in flight came again"
