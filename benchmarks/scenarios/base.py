"""What the runner asks of a scenario, and what it gets back."""

from collections.abc import Iterable
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
    """Figures of one run by key, and the share of a core its busiest generator process took."""

    figures: dict[str, float]
    busiest: float = 0.0


class Scenario(Protocol):
    def prepare(self, broker: Running) -> None: ...

    def run(self, broker: Running, pace: Pace) -> Outcome: ...

    def clean_up(self, broker: Running) -> None: ...


def busiest(reports: Iterable[Report]) -> float:
    return max((report.busy for report in reports), default=0.0)
