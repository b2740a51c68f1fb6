"""What a feature costs: the same load on Leveret, with and without it.

Both variants run in every round, in alternating order, so that other activity of the machine
affects both; each round is one comparison. The figure is the share of the rate that is lost, in
percent: the median over all rounds. Noise can make it negative. If the settings differ there are
two new brokers; if they do not (polling), one broker is used for both, so that only the feature
differs.
"""

import contextlib
import statistics
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.brokers import HOST, RunningBroker
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.scenarios.flow import Flow
from benchmarks.workers import Report
from leveret.testing.ports import free_port

_ROUNDS = 5
_POLLED = ("/api/overview", "/api/queues", "/metrics")


@dataclass(frozen=True, slots=True)
class Cost:
    """`with_feature` and `without` are settings; `polled` queries the HTTP API every second."""

    flow: Flow
    with_feature: Mapping[str, str] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    polled: bool = False

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run starts its own brokers."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        port = free_port()
        workers: list[Report] = []
        with contextlib.ExitStack() as stack:
            with_settings = {**self.with_feature, "LEVERET_HTTP_PORT": str(port)}
            enabled = stack.enter_context(_started(broker, with_settings))
            is_same = self.with_feature == self.without
            disabled = enabled
            if not is_same:
                disabled = stack.enter_context(_started(broker, self.without))
            for target in (enabled,) if is_same else (enabled, disabled):
                self.flow.prepare(target)
            if self.polled:
                _poll(port)  # the first request loads the HTTP API
            ratios = [
                self._compare(number, enabled, disabled, port, length, workers)
                for number in range(_ROUNDS)
            ]
        return Outcome({"lost": (1 - statistics.median(ratios)) * 100}, tuple(workers))

    def _compare(
        self,
        number: int,
        enabled: RunningBroker,
        disabled: RunningBroker,
        port: int,
        length: RunLength,
        workers: list[Report],
    ) -> float:
        """The rate with the feature as a share of the rate without it."""
        rates: dict[bool, float] = {}
        for is_enabled in (True, False) if number % 2 else (False, True):
            with _polling(port) if is_enabled and self.polled else contextlib.nullcontext():
                outcome = self.flow.run(enabled if is_enabled else disabled, length)
            rates[is_enabled] = outcome.figures["rate"]
            workers += outcome.workers
        return rates[True] / rates[False]

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""


@contextlib.contextmanager
def _started(broker: RunningBroker, settings: Mapping[str, str]) -> Iterator[RunningBroker]:
    running = broker.another(settings)
    try:
        yield running
    finally:
        running.stop()


@contextlib.contextmanager
def _polling(port: int) -> Iterator[None]:
    """Query the HTTP API every second, as a dashboard and a monitoring system would."""
    done = threading.Event()

    def poll() -> None:
        while not done.wait(1.0):
            _poll(port)

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield
    finally:
        done.set()
        poller.join()


def _poll(port: int) -> None:
    login = b64encode(b"guest:guest").decode()
    for path in _POLLED:
        request = urllib.request.Request(
            f"http://{HOST}:{port}{path}", headers={"Authorization": f"Basic {login}"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            response.read()
