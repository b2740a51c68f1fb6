"""What a convenience costs: the same load on two fresh Leverets, with and without it.

The two take turns, so that whatever else the machine does falls on both. The figure is the share of
the rate that is lost, in percent; noise can make it negative.
"""

import contextlib
import statistics
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.brokers import HOST, Kind, Running, free_port, start
from benchmarks.crew import Report
from benchmarks.scenarios.base import Outcome, Pace
from benchmarks.scenarios.flow import Flow

_TURNS = 3
_POLLED = ("/api/overview", "/api/queues", "/metrics")


@dataclass(frozen=True, slots=True)
class Cost:
    """`with_it` and `without` are settings; `polled` asks the HTTP API every second meanwhile."""

    flow: Flow
    with_it: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    polled: bool = False

    def prepare(self, broker: Running) -> None:
        """Nothing: every run starts its own brokers."""

    def run(self, broker: Running, pace: Pace) -> Outcome:
        port = free_port()
        dear_settings = {**self.with_it, "LEVERET_HTTP_PORT": str(port)}
        with _started(dear_settings) as dear, _started(self.without) as cheap:
            for one in (dear, cheap):
                self.flow.prepare(one)
            rates: dict[bool, list[float]] = {True: [], False: []}
            workers: list[Report] = []
            for turn in range(_TURNS):
                for is_dear in (True, False) if turn % 2 else (False, True):
                    with _polling(port) if is_dear and self.polled else contextlib.nullcontext():
                        outcome = self.flow.run(dear if is_dear else cheap, pace)
                    rates[is_dear].append(outcome.figures["rate"])
                    workers += outcome.workers
        kept = statistics.median(rates[True]) / statistics.median(rates[False])
        return Outcome({"lost": (1 - kept) * 100}, tuple(workers))

    def clean_up(self, broker: Running) -> None:
        """Nothing is left after a run."""


@contextlib.contextmanager
def _started(settings: Mapping[str, str]) -> Iterator[Running]:
    running = start(Kind.LEVERET, settings)
    try:
        yield running
    finally:
        running.stop()


@contextlib.contextmanager
def _polling(port: int) -> Iterator[None]:
    """Somebody who looks every second, as a dashboard and a monitoring system would."""
    done = threading.Event()
    login = b64encode(b"guest:guest").decode()

    def look() -> None:
        while not done.wait(1.0):
            for path in _POLLED:
                request = urllib.request.Request(
                    f"http://{HOST}:{port}{path}", headers={"Authorization": f"Basic {login}"}
                )
                with urllib.request.urlopen(request, timeout=30) as answer:
                    answer.read()

    poller = threading.Thread(target=look, daemon=True)
    poller.start()
    try:
        yield
    finally:
        done.set()
        poller.join()
