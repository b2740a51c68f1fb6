"""How soon a broker inside the caller's own process is ready, once it is imported.

Measured in a fresh process, because a benchmark's own has imported half of Leveret already. Each
start is followed by a connection, so that ready means ready. The first start of a process, which
loads what is imported late, is told apart from the later ones.
"""

import statistics
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.brokers import Running
from benchmarks.scenarios.base import Outcome, Pace

_PROGRAM = """
import asyncio, socket, sys, time
import leveret
leveret.Broker, leveret.ThreadedBroker

def threaded():
    before = time.perf_counter()
    with leveret.ThreadedBroker() as broker:
        socket.create_connection(broker.amqp_address).close()
        return time.perf_counter() - before

async def inside():
    before = time.perf_counter()
    async with leveret.Broker() as broker:
        _, writer = await asyncio.open_connection(*broker.amqp_address)
        ready = time.perf_counter() - before
        writer.close()
        return ready

for _ in range(int(sys.argv[2])):
    print(threaded() if sys.argv[1] == "threaded" else asyncio.run(inside()))
"""


@dataclass(frozen=True, slots=True)
class InProcess:
    """`starts` brokers one after the other in one process, for each way of starting."""

    starts: int = 20

    def prepare(self, broker: Running) -> None:
        """Nothing: every run starts its own brokers."""

    def run(self, broker: Running, pace: Pace) -> Outcome:
        figures: dict[str, float] = {}
        for way in ("asyncio", "threaded"):
            first, *later = self._measure(way)
            figures[f"{way}-first"] = first * 1000
            figures[way] = statistics.median(later) * 1000
        return Outcome(figures)

    def clean_up(self, broker: Running) -> None:
        """Nothing is left after a run."""

    def _measure(self, way: str) -> list[float]:
        command = [sys.executable, "-c", _PROGRAM, way, str(max(2, self.starts))]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        return [float(line) for line in said.stdout.split()]
