"""Counters of what the broker has done since it started. Rates are computed elsewhere."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

SIZE_BOUNDS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""The buckets that RabbitMQ's Grafana dashboard queries."""


@dataclass(slots=True)
class Counters:
    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    logins_succeeded: int = 0
    logins_failed: int = 0
    dropped_unroutable: int = 0
    returned_unroutable: int = 0
    get_empty: int = 0
    published: int = 0
    published_bytes: int = 0
    confirmed: int = 0
    sizes: list[int] = field(default_factory=lambda: [0] * (len(SIZE_BOUNDS) + 1))
    """Entry n counts published bodies of at most SIZE_BOUNDS[n] bytes, the last larger ones."""
    dead_lettered: dict[str, int] = field(default_factory=dict)
    """Messages sent to a dead-letter exchange, by reason."""
    deleted_queues: list[int] = field(default_factory=lambda: [0] * 9)
    """The sums over deleted queues, in the order of a queue's own counters."""

    def count_sizes(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            self.sizes[bisect_left(SIZE_BOUNDS, size)] += 1


@dataclass(slots=True)
class VhostCounters:
    """What a virtual host has done that none of its present objects counts.

    `published`, `received` and `sent` are those of deleted exchanges and closed connections.
    """

    published: int = 0
    received: int = 0
    sent: int = 0
    confirmed: int = 0
    dropped_unroutable: int = 0
    returned_unroutable: int = 0
    get_empty: int = 0
    queues_declared: int = 0
    queues_created: int = 0
    queues_deleted: int = 0
    deleted_queues: list[int] = field(default_factory=lambda: [0] * 9)
