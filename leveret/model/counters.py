"""What the broker has done since it started, as plain numbers. Rates are made elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field

SIZE_BOUNDS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""RabbitMQ's dashboard asks for these and no others."""


@dataclass(slots=True)
class Counters:
    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    dropped_unroutable: int = 0
    returned_unroutable: int = 0
    get_empty: int = 0
    published: int = 0
    published_bytes: int = 0
    confirmed: int = 0
    sizes: list[int] = field(default_factory=lambda: [0] * (len(SIZE_BOUNDS) + 1))
    """Entry n counts published bodies of at most SIZE_BOUNDS[n] octets, the last larger ones."""
    dead_lettered: dict[str, int] = field(default_factory=dict)
    """By reason, what has gone on to a dead-letter exchange."""
    gone_queues: list[int] = field(default_factory=lambda: [0] * 9)
    """The sums of queues that have been deleted, in the order of a queue's own values."""


@dataclass(slots=True)
class VhostCounters:
    """What a virtual host has done that none of its objects remembers any more.

    `published`, `received` and `sent` are of exchanges and connections that have gone.
    """

    published: int = 0
    received: int = 0
    sent: int = 0
    confirmed: int = 0
    dropped_unroutable: int = 0
    returned_unroutable: int = 0
    get_empty: int = 0
    gone_queues: list[int] = field(default_factory=lambda: [0] * 9)
