"""Checks that the broker's counters balance: every message is in its queue, or left for a reason.

Counters of one broker run are read over HTTP. Counters over all runs are in the journal, which is
read while the broker runs, before its history is trimmed. While the disk is nearly full, history
gives way, and events may be deleted before they are read: then nothing can be said about sums.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leveret.model.history import FIRST_SETTLING, LAST_SETTLING, EventKind
from leveret.queues.storage.trims import EVENTS_KEY, Trims

_NEW = """
    SELECT q.name, e.kind, sum(e.count), max(e.id) FROM events e JOIN queues q ON q.id = e.queue_id
    WHERE e.id > ? GROUP BY q.name, e.kind
"""
_TRIMS = "SELECT value FROM meta WHERE key = ?"
SETTLING = tuple(kind for kind in EventKind if FIRST_SETTLING <= kind <= LAST_SETTLING)
Row = dict[str, Any]


@dataclass(slots=True)
class EventCounts:
    """Events by queue and kind: since the first start, and in this run of the broker."""

    path: Path
    ever: Counter[tuple[str, int]] = field(default_factory=Counter)
    broker_run: Counter[tuple[str, int]] = field(default_factory=Counter)
    is_complete: bool = True
    """False once events were deleted before they were read."""
    _last: int = 0
    _deletions: int = 0
    """The number of the last deletion that was looked at."""

    def update(self) -> None:
        address = f"{self.path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=30)) as database:
            database.execute("BEGIN")
            rows = database.execute(_NEW, (self._last,)).fetchall()
            trims = Trims.from_json(
                next((text for (text,) in database.execute(_TRIMS, (EVENTS_KEY,))), None)
            )
        deleted = trims.last_deleted_since(self._deletions)
        self._deletions = trims.number
        if deleted is not None and deleted > self._last:
            self.is_complete = False
        for queue, kind, count, last in rows:
            self.ever[queue, kind] += count
            self.broker_run[queue, kind] += count
            self._last = max(self._last, last)

    def begin_run(self) -> None:
        """Call this while no broker runs."""
        self.update()
        self.broker_run.clear()

    def total(self, kind: EventKind, queues: Iterable[str] | None = None) -> int:
        return sum(
            count
            for (queue, event_kind), count in self.ever.items()
            if event_kind == kind and (queues is None or queue in queues)
        )


@dataclass(frozen=True, slots=True)
class Sums:
    """One queue: messages published since it was declared, and where they are."""

    queue: str
    published: int
    ready: int
    unacked: int
    left: dict[EventKind, int]

    @property
    def balance(self) -> int:
        return self.published - self.ready - self.unacked - sum(self.left.values())

    def __str__(self) -> str:
        left = "".join(f" + {count} {kind.label}" for kind, count in self.left.items() if count)
        text = f"{self.published} published = {self.ready} ready + {self.unacked} unacked{left}"
        return f"{self.queue}: {text}"


def sums_of(event_counts: EventCounts, rows: dict[str, Row], queues: Iterable[str]) -> list[Sums]:
    return [
        Sums(
            queue,
            event_counts.ever[queue, EventKind.ENQUEUED],
            rows[queue]["messages_ready"],
            rows[queue]["messages_unacknowledged"],
            {kind: event_counts.ever[queue, kind] for kind in SETTLING},
        )
        for queue in queues
    ]


def add_up(sums: Iterable[Sums]) -> Sums:
    all_sums = list(sums)
    left = {kind: sum(queue_sums.left[kind] for queue_sums in all_sums) for kind in SETTLING}
    return Sums(
        "all durable queues",
        sum(queue_sums.published for queue_sums in all_sums),
        sum(queue_sums.ready for queue_sums in all_sums),
        sum(queue_sums.unacked for queue_sums in all_sums),
        left,
    )


def differences(
    event_counts: EventCounts, rows: dict[str, Row], queues: Iterable[str], refused: Counter[str]
) -> list[str]:
    """Differences between the counters of this run in the HTTP API and its journal."""
    problems = []
    for queue in queues:
        stats = rows[queue].get("message_stats", {})
        published, settled = stats.get("publish", 0), _consumed(stats)
        entered = event_counts.broker_run[queue, EventKind.ENQUEUED] + refused[queue]
        acked = event_counts.broker_run[queue, EventKind.ACKED]
        if published != entered:
            problems.append(f"{queue}: {published} published, {entered} entered or were refused")
        if settled != acked:
            problems.append(f"{queue}: {settled} acked, {acked} in the journal")
    return problems


def in_memory_balance(row: Row) -> int:
    """The balance of a queue in memory, whose messages all belong to this run."""
    stats = row.get("message_stats", {})
    present = int(row["messages_ready"]) + int(row["messages_unacknowledged"])
    return int(stats.get("publish", 0)) - present - _consumed(stats)


def _consumed(stats: Row) -> int:
    return sum(int(stats.get(name, 0)) for name in ("ack", "deliver_no_ack", "get_no_ack"))
