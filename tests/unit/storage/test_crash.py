"""kill -9 while writing: every batch that was reported committed is there."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.contract.stores import Harness
from tests.unit.storage.crash_child import body_of

ROUNDS = 4


@dataclass
class Progress:
    """The highest ids published and acked: attempted, and reported durable."""

    tried: tuple[int, int] = (0, 0)
    durable: tuple[int, int] = (0, 0)

    def add(self, line: str) -> None:
        stage, published, acked = line.split()
        setattr(self, stage, (int(published), int(acked)))


def run_and_kill(directory: Path) -> Progress:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.storage.crash_child", str(directory)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    progress = Progress()
    try:
        for _ in range(random.randrange(20, 120)):
            line = child.stdout.readline()
            assert line, child.communicate()[1]
            progress.add(line)
        time.sleep(random.random() / 50)  # a random moment for the kill, not a wait
    finally:
        child.kill()
    rest = child.stdout.read()  # `communicate` would miss what `readline` has buffered
    child.communicate()
    for line in rest.rpartition("\n")[0].splitlines():
        progress.add(line)
    return progress


async def test_committed_batches_survive_kill_9(tmp_path: Path):
    for _ in range(ROUNDS):
        progress = run_and_kill(tmp_path)
        harness = Harness(tmp_path)
        live = harness.live()
        assert not harness.recovered.clean
        assert not harness.recovered.damaged
        assert set(range(progress.tried[1] + 1, progress.durable[0] + 1)) <= set(live), "lost"
        assert not live or live[0] > progress.durable[1], "acked, but recovered"
        assert not live or live[-1] <= progress.tried[0], "never published"
        assert await harness.bodies(live) == [body_of(i) for i in live]
        await harness.close()
