"""The result of a torture run: figures for readers, problems for the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Called with the number of cycles that are done, and of all cycles."""


def silent(_done: int, _total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Outcome:
    row: str
    title: str
    figures: str
    problems: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    """Exceeded time limits. They fail `make torture` but not the tests, which may run on busy
    machines."""

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
