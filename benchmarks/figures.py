"""The arithmetic of the report: medians, percentiles, and how many times better."""

import math
import statistics
from collections.abc import Sequence
from enum import StrEnum


class Unit(StrEnum):
    """The unit of a figure. For rates, more is better; for all others, less."""

    RATE = "/s"
    MILLISECONDS = "ms"
    SECONDS = "s"
    MEGABYTES = "MB"
    KILOBYTES = "kB"
    PERCENT = "%"

    @property
    def more_is_better(self) -> bool:
        return self is Unit.RATE


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values")
    rank = max(math.ceil(len(values) * percent / 100), 1)
    return sorted(values)[rank - 1]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def times_better(unit: Unit, ours: float, theirs: float) -> float:
    """How many times better ours is: above 1 ours is better, whatever the unit."""
    better, worse = (ours, theirs) if unit.more_is_better else (theirs, ours)
    return better / worse if worse else math.inf


def shown(unit: Unit, value: float) -> str:
    if unit is Unit.RATE:
        return f"{value:,.0f}/s"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
