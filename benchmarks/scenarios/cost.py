"""What a convenience costs: the same load on Leveret, with and without it.

The two take turns, so that whatever else the machine does falls on both: each turn runs both, in
an order that changes, and is one comparison. The figure is the share of the rate that is lost, the
median over all turns, in percent; noise can make it negative. Where settings differ there are two
fresh brokers; where they do not (polling) it is one and the same, so that nothing but the
convenience differs.
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

_TURNS = 5
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
        workers: list[Report] = []
        with contextlib.ExitStack() as stack:
            dear_settings = {**self.with_it, "LEVERET_HTTP_PORT": str(port)}
            dear = stack.enter_context(_started(dear_settings))
            is_one = self.with_it == self.without
            cheap = dear if is_one else stack.enter_context(_started(self.without))
            for one in (dear,) if is_one else (dear, cheap):
                self.flow.prepare(one)
            if self.polled:
                _look(port)  # the first question of all loads the HTTP API
            kept = [self._turn(turn, dear, cheap, port, pace, workers) for turn in range(_TURNS)]
        return Outcome({"lost": (1 - statistics.median(kept)) * 100}, tuple(workers))

    def _turn(
        self, turn: int, dear: Running, cheap: Running, port: int, pace: Pace, workers: list[Report]
    ) -> float:
        """The rate with it as a share of the rate without."""
        rates: dict[bool, float] = {}
        for is_dear in (True, False) if turn % 2 else (False, True):
            with _polling(port) if is_dear and self.polled else contextlib.nullcontext():
                outcome = self.flow.run(dear if is_dear else cheap, pace)
            rates[is_dear] = outcome.figures["rate"]
            workers += outcome.workers
        return rates[True] / rates[False]

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

    def look() -> None:
        while not done.wait(1.0):
            _look(port)

    poller = threading.Thread(target=look, daemon=True)
    poller.start()
    try:
        yield
    finally:
        done.set()
        poller.join()


def _look(port: int) -> None:
    login = b64encode(b"guest:guest").decode()
    for path in _POLLED:
        request = urllib.request.Request(
            f"http://{HOST}:{port}{path}", headers={"Authorization": f"Basic {login}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
