"""What a torture run comes to: figures for people, problems for the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""How many of how many cycles are done."""


def silent(_done: int, _total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Outcome:
    row: str
    title: str
    figures: str
    problems: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    """Limits in seconds that were passed: judged by `make torture`, not by the tests, which run on
    machines as busy as they like."""

    @property
    def safe(self) -> bool:
        return not self.problems

    @property
    def passed(self) -> bool:
        return not self.problems and not self.late

    def __str__(self) -> str:
        problems = [*self.problems, *self.late]
        verdict = "FAILED: " + "; ".join(problems[:10]) if problems else "passed"
        return f"{self.row} {self.title}: {self.figures}: {verdict}"
