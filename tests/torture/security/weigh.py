"""The broker, asked how much it holds: `python -m ... FILE serve ...`.

What a process holds may be free memory that its allocators keep; objects are in use. SIGUSR1
collects what can be collected and writes to the file how many objects there are, and how many of
them are tasks and timers that are not done.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.torture.process import BrokerProcess

TIMERS = ("TimerHandle",)
"""By name: each loop has its own."""


@dataclass(frozen=True, slots=True)
class Weight:
    objects: int
    tasks: int
    timers: int

    def more_than(self, before: Weight) -> str:
        """How many tasks and timers have come, for people."""
        return f"{self.tasks - before.tasks:+d} tasks, {self.timers - before.timers:+d} timers"

    def grew(self, before: Weight, slack: int) -> bool:
        """More, or fewer, tasks or timers than before; beyond some that come and go."""
        return abs(self.tasks - before.tasks) > slack or abs(self.timers - before.timers) > slack


async def weigh(broker: BrokerProcess, file: Path) -> Weight:
    from tests.torture.security.health import notes

    return Weight(*map(int, (await notes(broker, file)).split()))


def count() -> Weight:
    gc.unfreeze()  # a task that was there at the start counts, too
    for _ in range(3):  # what it finds may hold more, and what holds nothing is tracked no longer
        gc.collect()
    held = gc.get_objects()
    tasks = sum(isinstance(one, asyncio.Task) and not one.done() for one in held)
    timers = sum(type(one).__name__ in TIMERS and not one.cancelled() for one in held)
    return Weight(len(held), tasks, timers)


def main() -> None:
    path = Path(sys.argv.pop(1))

    def write(*_signal: object) -> None:
        weight = count()
        fresh = path.with_suffix(".new")
        fresh.write_text(f"{weight.objects} {weight.tasks} {weight.timers}", encoding="ascii")
        os.replace(fresh, path)

    signal.signal(signal.SIGUSR1, write)
    from leveret.cli import main as leveret_main

    leveret_main()


if __name__ == "__main__":
    main()
