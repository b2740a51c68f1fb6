"""`leveret serve` with a probe: how long does a callback wait for the event loop?

A thread asks the loop for a callback every few milliseconds. The CPU time that the loop's thread
uses until the callback runs is the work that any other client would have had to wait for. CPU time
does not depend on what else the machine does. Waits above a millisecond are appended to the file
that the environment variable names, one line each: when the wait ended (CLOCK_MONOTONIC), and how
much CPU time and how much time it took, in milliseconds.
"""

import asyncio
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from leveret import launch
from leveret.cli.serve import serve

FILE_VARIABLE = "LEVERET_BENCH_LOOP_PROBE"
_INTERVAL_SECONDS = 0.003
_SHORTEST_MS = 1.0
_new_loop = launch._new_loop


@dataclass(frozen=True, slots=True)
class LoopWait:
    """Work of the loop's thread that a callback had to wait for."""

    ended: float
    cpu_ms: float
    ms: float


def read_waits(path: Path) -> list[LoopWait]:
    return [LoopWait(*map(float, line.split())) for line in path.read_text().splitlines()]


def _probed_loop() -> asyncio.AbstractEventLoop:
    loop = _new_loop()
    loop_clock = time.pthread_getcpuclockid(threading.get_ident())
    threading.Thread(target=_probe, args=(loop, loop_clock), daemon=True).start()
    return loop


def _probe(loop: asyncio.AbstractEventLoop, loop_clock: int) -> None:
    ran = threading.Event()
    with Path(os.environ[FILE_VARIABLE]).open("w", buffering=1) as file:
        while not loop.is_closed():
            asked, cpu = time.monotonic(), time.clock_gettime(loop_clock)
            try:
                loop.call_soon_threadsafe(_on_turn, asked, cpu, file, ran)
            except RuntimeError:  # closed meanwhile
                return
            ran.wait(60)
            ran.clear()
            time.sleep(_INTERVAL_SECONDS)


def _on_turn(asked: float, cpu: float, file: TextIO, ran: threading.Event) -> None:
    cpu_ms, now = (time.thread_time() - cpu) * 1000, time.monotonic()
    if cpu_ms > _SHORTEST_MS:
        file.write(f"{now} {cpu_ms:.3f} {(now - asked) * 1000:.3f}\n")
    ran.set()


if __name__ == "__main__":
    launch._new_loop = _probed_loop
    sys.exit(serve(sys.argv[2:]))
