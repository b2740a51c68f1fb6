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

    @property
    def passed(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED: " + "; ".join(self.problems[:10])
        return f"{self.row} {self.title}: {self.figures}: {verdict}"
