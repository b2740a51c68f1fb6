"""The verdict of the long soak: the checker over all clients, and the growth of memory."""

from __future__ import annotations

from itertools import combinations
from statistics import median

from leveret.model.history import EventKind
from tests.torture.checker import Ledger
from tests.torture.soak_clients import (
    DEAD_LETTERED,
    DEAD_LETTERING,
    LOGGED,
    LOSSY,
    STRICT,
    Observations,
)
from tests.torture.soak_sums import EventCounts

MIN_JUDGED_SECONDS = 600.0
"""Minimum seconds of the last half: a shorter one says nothing about growth."""
SLOPE_LIMIT = 1.0
"""MB per ten minutes."""
WINDOW_SECONDS = 120.0


def judge(observations: Observations, event_counts: EventCounts) -> str:
    """Return the checker's summary and add problems.

    Messages that a policy removed (expired, dropped) are not lost if the journal says so;
    dead-lettered messages must come out of the dead-letter queue. A log may deliver again.
    """
    strict, lossy, dying, dead, logged = (
        observations.ledgers[kind]
        for kind in (STRICT, LOSSY, DEAD_LETTERING, DEAD_LETTERED, LOGGED)
    )
    verdicts = [ledger.verdict() for ledger in observations.ledgers.values()]
    lost = strict.verdict().lost + logged.verdict().lost
    lost += len({key[1:] for key in dying.confirmed - dying.seen.keys()} - _numbers(dead))
    for queue in ("expiring", "bounded"):
        missing = sum(key[0] == queue for key in lossy.confirmed - lossy.seen.keys())
        let_go = (
            event_counts.ever[queue, EventKind.EXPIRED]
            + event_counts.ever[queue, EventKind.DROPPED]
        )
        if event_counts.is_complete:
            lost += max(0, missing - let_go)
    phantom = sum(verdict.phantom for verdict in verdicts)
    duplicate = sum(verdict.duplicate for verdict in verdicts) - logged.duplicate
    reordered = sum(verdict.reordered for verdict in verdicts) - dead.reordered
    words = f"lost {lost}, phantom {phantom}, unmarked duplicates {duplicate}"
    words += f", reordered {reordered}"
    if lost or phantom or duplicate or reordered:
        observations.problems.append(words)
    sent = sum(verdict.sent for verdict in verdicts) - dead.verdict().sent
    return (
        f"{sent} sent, {observations.confirmed} confirmed, {len(logged.seen)} through a log; "
        f"{words}"
    )


def _numbers(dead: Ledger) -> set[tuple[int, int]]:
    return {(publisher, sequence) for _, publisher, sequence in dead.seen}


def judge_memory(
    observations: Observations, samples: list[tuple[float, float]], seconds: float
) -> str:
    """`samples` (seconds, MB) are of the last half.

    Memory used during an alarm is freed again, so the minimum of every two minutes is judged, which
    includes leaks. Two minutes may lack a low sample, so the median of all pairwise slopes counts.
    """
    if len(samples) < 2 or seconds / 2 < MIN_JUDGED_SECONDS:
        return "too short to judge memory"
    floor = lowest(samples, WINDOW_SECONDS)
    grows = trend(floor)
    if grows > SLOPE_LIMIT:
        observations.problems.append(f"memory grows by {grows:.2f} MB in ten minutes")
    levels = " ".join(f"{size:.0f}" for _, size in floor)
    return (
        f"memory {grows:+.2f} MB in ten minutes over the last half (all samples "
        f"{slope(samples):+.2f}; lowest of every two minutes {levels} MB)"
    )


def lowest(samples: list[tuple[float, float]], window: float) -> list[tuple[float, float]]:
    """The lowest sample of every complete window."""
    begin, end = samples[0][0], samples[-1][0]
    windows = max(1, int((end - begin) / window))
    minima = []
    for number in range(windows):
        start = begin + number * window
        in_window = [sample for sample in samples if start <= sample[0] < start + window]
        minima += [min(in_window, key=lambda sample: sample[1])] if in_window else []
    return minima


def trend(samples: list[tuple[float, float]]) -> float:
    """The median of all pairwise slopes, per ten minutes; a few outliers do not change it."""
    pairs = combinations(samples, 2)
    return 600 * median((later - size) / (end - begin) for (begin, size), (end, later) in pairs)


def slope(samples: list[tuple[float, float]]) -> float:
    """Slope by least squares, per ten minutes; samples are (seconds, MB)."""
    middle_x = sum(x for x, _ in samples) / len(samples)
    middle_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - middle_x) ** 2 for x, _ in samples)
    return 600 * sum((x - middle_x) * (y - middle_y) for x, y in samples) / spread
