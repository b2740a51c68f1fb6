"""What the runner asks of a scenario, and what it gets back."""

from dataclasses import dataclass
from typing import Protocol

from benchmarks.brokers import Running
from benchmarks.crew import Report


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a run may take: `seconds` of load, and the share of counted work to do."""

    seconds: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one run by key, and what the generator's processes needed for it."""

    figures: dict[str, float]
    workers: tuple[Report, ...] = ()

    @property
    def busiest(self) -> float:
        """The share of a core that the busiest generator process took."""
        return max((worker.busy for worker in self.workers), default=0.0)

    @property
    def cpu(self) -> float:
        """Processor seconds of all generator processes."""
        return sum(worker.cpu for worker in self.workers)


class Scenario(Protocol):
    def prepare(self, broker: Running) -> None: ...

    def run(self, broker: Running, pace: Pace) -> Outcome: ...

    def clean_up(self, broker: Running) -> None: ...
