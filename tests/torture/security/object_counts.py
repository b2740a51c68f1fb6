"""Runs the broker and counts its objects on request: `python -m ... FILE serve ...`.

The memory of a process includes free memory kept by allocators; objects are in use. SIGUSR1 runs
the garbage collector and writes to the file the number of objects, and of tasks and timers that are
not done.
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
"""By name, since each event loop has its own class."""


@dataclass(frozen=True, slots=True)
class ObjectCounts:
    objects: int
    tasks: int
    timers: int

    def difference(self, before: ObjectCounts) -> str:
        """The change in tasks and timers, as text."""
        return f"{self.tasks - before.tasks:+d} tasks, {self.timers - before.timers:+d} timers"

    def differs(self, before: ObjectCounts, slack: int) -> bool:
        """Whether tasks or timers changed by more than `slack`."""
        return abs(self.tasks - before.tasks) > slack or abs(self.timers - before.timers) > slack


async def count_objects(broker: BrokerProcess, file: Path) -> ObjectCounts:
    from tests.torture.security.loop_lag import read_report

    return ObjectCounts(*map(int, (await read_report(broker, file)).split()))


def count_own_objects() -> ObjectCounts:
    gc.unfreeze()  # count tasks of the start, too
    for _ in range(3):  # collected objects may release more
        gc.collect()
    objects = gc.get_objects()
    tasks = sum(isinstance(item, asyncio.Task) and not item.done() for item in objects)
    timers = sum(type(item).__name__ in TIMERS and not item.cancelled() for item in objects)
    return ObjectCounts(len(objects), tasks, timers)


def main() -> None:
    path = Path(sys.argv.pop(1))

    def write(*_signal: object) -> None:
        counts = count_own_objects()
        new_file = path.with_suffix(".new")
        new_file.write_text(f"{counts.objects} {counts.tasks} {counts.timers}", encoding="ascii")
        os.replace(new_file, path)

    signal.signal(signal.SIGUSR1, write)
    from leveret.cli import main as leveret_main

    leveret_main()


if __name__ == "__main__":
    main()
