"""kill -9 in the middle of writing: whatever was reported committed is there."""

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
class Fate:
    """The highest ids published and acknowledged: attempted, and reported durable."""

    tried: tuple[int, int] = (0, 0)
    durable: tuple[int, int] = (0, 0)

    def read(self, line: str) -> None:
        what, published, acked = line.split()
        setattr(self, what, (int(published), int(acked)))


def run_and_kill(directory: Path) -> Fate:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.storage.crash_child", str(directory)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    fate = Fate()
    try:
        for _ in range(random.randrange(20, 120)):
            line = child.stdout.readline()
            assert line, child.communicate()[1]
            fate.read(line)
        time.sleep(random.random() / 50)  # not a wait: the moment of death
    finally:
        child.kill()
    rest, _ = child.communicate()
    for line in rest.rpartition("\n")[0].splitlines():
        fate.read(line)
    return fate


async def test_what_was_committed_survives_kill_9(tmp_path: Path):
    for _ in range(ROUNDS):
        fate = run_and_kill(tmp_path)
        harness = Harness(tmp_path)
        live = harness.live()
        assert not harness.recovered.clean
        assert not harness.recovered.damaged
        assert set(range(fate.tried[1] + 1, fate.durable[0] + 1)) <= set(live), "lost"
        assert not live or live[0] > fate.durable[1], "acknowledged, and back"
        assert not live or live[-1] <= fate.tried[0], "never published"
        assert await harness.bodies(live) == [body_of(i) for i in live]
        await harness.close()
