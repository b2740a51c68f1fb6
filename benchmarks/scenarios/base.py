"""The interface between the runner and a scenario."""

from dataclasses import dataclass
from typing import Protocol

from benchmarks.brokers import RunningBroker
from benchmarks.workers import Report


@dataclass(frozen=True, slots=True)
class RunLength:
    """How long a run is: `seconds` of load, and the share of the counted work to do."""

    seconds: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one run by key, and the reports of the generator's processes."""

    figures: dict[str, float]
    workers: tuple[Report, ...] = ()

    @property
    def busiest(self) -> float:
        """The share of a core that the busiest generator process used."""
        return max((worker.busy for worker in self.workers), default=0.0)

    @property
    def cpu(self) -> float:
        """CPU seconds of all generator processes."""
        return sum(worker.cpu for worker in self.workers)


class Scenario(Protocol):
    def prepare(self, broker: RunningBroker) -> None: ...

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome: ...

    def clean_up(self, broker: RunningBroker) -> None: ...
