"""The broker's own numbers, and whether they add up: what came in is there, or left for a reason.

Numbers of a life are read over HTTP. What must be known over all lives is in the journal, which is
read beside the running broker before its history is trimmed.
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

_NEW = """
    SELECT q.name, e.kind, sum(e.count), max(e.id) FROM events e JOIN queues q ON q.id = e.queue_id
    WHERE e.id > ? GROUP BY q.name, e.kind
"""
SETTLING = tuple(kind for kind in EventKind if FIRST_SETTLING <= kind <= LAST_SETTLING)
Row = dict[str, Any]


@dataclass(slots=True)
class Tally:
    """Events by queue and kind: since the first start, and in this life of the broker."""

    path: Path
    ever: Counter[tuple[str, int]] = field(default_factory=Counter)
    life: Counter[tuple[str, int]] = field(default_factory=Counter)
    _last: int = 0

    def look(self) -> None:
        address = f"{self.path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=30)) as database:
            rows = database.execute(_NEW, (self._last,)).fetchall()
        for queue, kind, count, last in rows:
            self.ever[queue, kind] += count
            self.life[queue, kind] += count
            self._last = max(self._last, last)

    def begin_life(self) -> None:
        """While no broker runs."""
        self.look()
        self.life.clear()

    def total(self, kind: EventKind, queues: Iterable[str] | None = None) -> int:
        return sum(
            count
            for (queue, its), count in self.ever.items()
            if its == kind and (queues is None or queue in queues)
        )


@dataclass(frozen=True, slots=True)
class Sums:
    """One queue: what came in over its life, and where it is."""

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


def sums_of(tally: Tally, rows: dict[str, Row], queues: Iterable[str]) -> list[Sums]:
    return [
        Sums(
            queue,
            tally.ever[queue, EventKind.ENQUEUED],
            rows[queue]["messages_ready"],
            rows[queue]["messages_unacknowledged"],
            {kind: tally.ever[queue, kind] for kind in SETTLING},
        )
        for queue in queues
    ]


def add_up(sums: Iterable[Sums]) -> Sums:
    every = list(sums)
    left = {kind: sum(one.left[kind] for one in every) for kind in SETTLING}
    return Sums(
        "all durable queues",
        sum(one.published for one in every),
        sum(one.ready for one in every),
        sum(one.unacked for one in every),
        left,
    )


def differences(
    tally: Tally, rows: dict[str, Row], queues: Iterable[str], refused: Counter[str]
) -> list[str]:
    """Where the counters of this life, as the API has them, differ from its journal."""
    found = []
    for queue in queues:
        stats = rows[queue].get("message_stats", {})
        published, settled = stats.get("publish", 0), _consumed(stats)
        entered = tally.life[queue, EventKind.ENQUEUED] + refused[queue]
        acked = tally.life[queue, EventKind.ACKED]
        if published != entered:
            found.append(f"{queue}: {published} published, {entered} entered or were refused")
        if settled != acked:
            found.append(f"{queue}: {settled} acked, {acked} in the journal")
    return found


def in_memory_balance(row: Row) -> int:
    """Of a queue whose messages are only in memory; nothing of it is older than this life."""
    stats = row.get("message_stats", {})
    there = int(row["messages_ready"]) + int(row["messages_unacknowledged"])
    return int(stats.get("publish", 0)) - there - _consumed(stats)


def _consumed(stats: Row) -> int:
    return sum(int(stats.get(name, 0)) for name in ("ack", "deliver_no_ack", "get_no_ack"))
