"""Sums over all queues, computed once and shared by requests at about the same time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from leveret.broker import Broker
from leveret.broker.metrics import QUEUE_FIELDS, TOTAL_FIELDS, add_values, queue_values
from leveret.broker.runtime.slices import Steps, run_in_slices
from leveret.queues.port import MESSAGE_OVERHEAD, QueueStats

MAX_AGE_SECONDS = 1.0
MAX_UNCACHED_QUEUES = 500
"""With up to this many queues, the sums are computed for every request."""


@dataclass(slots=True)
class QueueSizes:
    """Sums over the queues whose messages are counted in bytes."""

    ready_bytes: int = 0
    unacked_bytes: int = 0
    ready_in_memory: int = 0
    ready_bytes_in_memory: int = 0
    paged_out: int = 0
    paged_out_bytes: int = 0
    oldest_ready_ms: int | None = None
    oldest_unacked_ms: int | None = None

    @property
    def memory(self) -> int:
        return self.ready_bytes_in_memory + MESSAGE_OVERHEAD * self.ready_in_memory

    def add(self, stats: QueueStats) -> None:
        self.ready_bytes += stats.ready_bytes
        self.unacked_bytes += stats.unacked_bytes
        self.ready_in_memory += stats.ready_in_memory
        self.ready_bytes_in_memory += stats.ready_bytes_in_memory
        self.paged_out += stats.paged_out
        self.paged_out_bytes += stats.paged_out_bytes


@dataclass(frozen=True, slots=True)
class Totals:
    values: tuple[int, ...]
    """In the order of TOTAL_FIELDS."""
    consumers: int
    by_kind: dict[str, list[int]]
    """By queue type, in the order of QUEUE_FIELDS; deleted queues count as classic."""
    sizes: QueueSizes
    computed: float

    def of(self, field: str) -> int:
        return self.values[TOTAL_FIELDS.index(field)]


class TotalsCache:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._last: Totals | None = None
        self._computing = asyncio.Lock()

    async def get(self) -> Totals:
        async with self._computing:
            broker, last = self._broker, self._last
            now = broker.clock.monotonic()
            queues = sum(len(vhost.queues) for vhost in broker.vhosts.values())
            is_small = queues <= MAX_UNCACHED_QUEUES
            if last is None or is_small or not 0 <= now - last.computed < MAX_AGE_SECONDS:
                last = self._last = await run_in_slices(_compute(broker, now))
            return last


def _compute(broker: Broker, now: float) -> Steps[Totals]:
    by_kind: dict[str, list[int]] = {"classic": list(broker.counters.deleted_queues)}
    by_vhost: list[list[int]] = []
    consumers, sizes = 0, QueueSizes()
    for vhost in list(broker.vhosts.values()):
        by_vhost.append([0] * len(QUEUE_FIELDS))
        for queue in list(vhost.queues.values()):
            values, stats = queue_values(queue), queue.stats()
            add_values(by_kind.setdefault(queue.spec.kind, [0] * len(QUEUE_FIELDS)), values)
            add_values(by_vhost[-1], values)
            consumers += len(queue.consumers)
            if stats is not None:
                sizes.add(stats)
                sizes.oldest_ready_ms = _oldest(sizes.oldest_ready_ms, queue.oldest_ready_ms())
                unacked_ms = queue.oldest_unacked_ms()
                sizes.oldest_unacked_ms = _oldest(sizes.oldest_unacked_ms, unacked_ms)
            yield
    return Totals(broker.metrics.totals_of(by_vhost), consumers, by_kind, sizes, now)


def _oldest(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


async def _totals(request: Request) -> Totals:
    cache: TotalsCache = request.app.state.totals
    return await cache.get()


BrokerTotals = Annotated[Totals, Depends(_totals)]
