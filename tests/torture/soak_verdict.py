"""What the long soak comes to: the checker over all its clients, and whether memory grew."""

from __future__ import annotations

from itertools import combinations
from statistics import median

from leveret.model.history import EventKind
from tests.torture.checker import Ledger
from tests.torture.soak_clients import DEAD, DYING, LOGGED, LOSSY, STRICT, Books
from tests.torture.soak_sums import Tally

LEAST_JUDGED = 600.0
"""Seconds that half of the run must have: what is shorter tells nothing about growth."""
SLOPE_LIMIT = 1.0
"""MB in ten minutes."""
WINDOW_SECONDS = 120.0


def judge(books: Books, tally: Tally) -> str:
    """The checker's words; what is wrong becomes a problem.

    What a policy lets go (expired, dropped) is not lost, as far as the journal says so; what was
    dead-lettered must have come out of the dead-letter queue. A log may repeat what it delivered.
    """
    strict, lossy, dying, dead, logged = (
        books.ledgers[kind] for kind in (STRICT, LOSSY, DYING, DEAD, LOGGED)
    )
    verdicts = [ledger.verdict() for ledger in books.ledgers.values()]
    lost = strict.verdict().lost + logged.verdict().lost
    lost += len({key[1:] for key in dying.confirmed - dying.seen.keys()} - _numbers(dead))
    for queue in ("expiring", "bounded"):
        missing = sum(key[0] == queue for key in lossy.confirmed - lossy.seen.keys())
        let_go = tally.ever[queue, EventKind.EXPIRED] + tally.ever[queue, EventKind.DROPPED]
        lost += max(0, missing - let_go)
    phantom = sum(verdict.phantom for verdict in verdicts)
    duplicate = sum(verdict.duplicate for verdict in verdicts) - logged.duplicate
    reordered = sum(verdict.reordered for verdict in verdicts) - dead.reordered
    words = f"lost {lost}, phantom {phantom}, unmarked duplicates {duplicate}"
    words += f", reordered {reordered}"
    if lost or phantom or duplicate or reordered:
        books.problems.append(words)
    sent = sum(verdict.sent for verdict in verdicts) - dead.verdict().sent
    return f"{sent} sent, {books.confirmed} confirmed, {len(logged.seen)} through a log; {words}"


def _numbers(dead: Ledger) -> set[tuple[int, int]]:
    return {(publisher, sequence) for _, publisher, sequence in dead.seen}


def judge_memory(books: Books, samples: list[tuple[float, float]], seconds: float) -> str:
    """`samples` (seconds, MB) are of the last half.

    What fills in an alarm goes again, so the lowest of every two minutes are judged: what leaks is
    in them, too. Two minutes may have no low moment, so the middle of the slopes between every two
    of them counts.
    """
    if len(samples) < 2 or seconds / 2 < LEAST_JUDGED:
        return "too short to judge memory"
    floor = lowest(samples, WINDOW_SECONDS)
    grows = trend(floor)
    if grows > SLOPE_LIMIT:
        books.problems.append(f"memory grows by {grows:.2f} MB in ten minutes")
    levels = " ".join(f"{size:.0f}" for _, size in floor)
    return (
        f"memory {grows:+.2f} MB in ten minutes over the last half (all samples "
        f"{slope(samples):+.2f}; lowest of every two minutes {levels} MB)"
    )


def lowest(samples: list[tuple[float, float]], window: float) -> list[tuple[float, float]]:
    """The lowest sample of every window; the last one is left out unless it is whole."""
    begin, end = samples[0][0], samples[-1][0]
    windows = max(1, int((end - begin) / window))
    found = []
    for number in range(windows):
        start = begin + number * window
        held = [sample for sample in samples if start <= sample[0] < start + window]
        found += [min(held, key=lambda sample: sample[1])] if held else []
    return found


def trend(samples: list[tuple[float, float]]) -> float:
    """The middle of the slopes between every two, for ten minutes; a few that lie apart have no
    say."""
    pairs = combinations(samples, 2)
    return 600 * median((later - size) / (end - begin) for (begin, size), (end, later) in pairs)


def slope(samples: list[tuple[float, float]]) -> float:
    """By least squares, for ten minutes; samples are (seconds, MB)."""
    middle_x = sum(x for x, _ in samples) / len(samples)
    middle_y = sum(y for _, y in samples) / len(samples)
    spread = sum((x - middle_x) ** 2 for x, _ in samples)
    return 600 * sum((x - middle_x) * (y - middle_y) for x, y in samples) / spread
