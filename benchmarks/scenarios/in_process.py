"""The start time of a broker in the caller's process, without the time of its import.

It is measured in a new process, because the benchmark's own has already imported much of Leveret.
Each start includes a connection, to be sure that the broker is ready. The first start of a process,
which includes late imports, is reported separately.
"""

import statistics
import subprocess
from dataclasses import dataclass

from benchmarks.brokers import Checkout, RunningBroker
from benchmarks.scenarios.base import Outcome, RunLength

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
    """Starts `starts` brokers one after the other in one process, for each API."""

    starts: int = 20

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run starts its own brokers."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        figures: dict[str, float] = {}
        for api in ("asyncio", "threaded"):
            first, *later = self._measure(api, broker.checkout)
            figures[f"{api}-first"] = first * 1000
            figures[api] = statistics.median(later) * 1000
        return Outcome(figures)

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""

    def _measure(self, api: str, checkout: Checkout) -> list[float]:
        done = subprocess.run(
            [checkout.python, "-c", _PROGRAM, api, str(max(2, self.starts))],
            cwd=checkout.root,
            env=checkout.environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return [float(line) for line in done.stdout.split()]
