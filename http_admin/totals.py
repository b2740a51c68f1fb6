"""Sums over all queues, taken once and shared by whoever asks at about the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from leveret.broker import Broker
from leveret.broker.metrics import TOTAL_FIELDS, queue_values

FRESH_SECONDS = 1.0
MANY_QUEUES = 500
"""Up to so many queues the sums are taken anew for every request."""


@dataclass(frozen=True, slots=True)
class Totals:
    values: tuple[int, ...]
    """In the order of TOTAL_FIELDS."""
    consumers: int
    by_kind: dict[str, list[int]]
    """Per type of queue, in the order of QUEUE_FIELDS; queues that have gone count as classic."""
    taken: float

    def of(self, field: str) -> int:
        return self.values[TOTAL_FIELDS.index(field)]


class TotalsTaker:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._last: Totals | None = None

    def take(self) -> Totals:
        broker, last = self._broker, self._last
        now = broker.clock.monotonic()
        queues = sum(len(vhost.queues) for vhost in broker.vhosts.values())
        if last is None or queues <= MANY_QUEUES or not 0 <= now - last.taken < FRESH_SECONDS:
            last = self._last = _take(broker, now)
        return last


def _take(broker: Broker, now: float) -> Totals:
    by_kind: dict[str, list[int]] = {"classic": list(broker.counters.gone_queues)}
    width = len(broker.counters.gone_queues)
    consumers = 0
    for vhost in broker.vhosts.values():
        for queue in vhost.queues.values():
            kind = queue.spec.kind
            sums = by_kind.get(kind) or [0] * width
            by_kind[kind] = [a + b for a, b in zip(sums, queue_values(queue), strict=True)]
            consumers += len(queue.consumers)
    return Totals(broker.metrics.current_totals(), consumers, by_kind, now)


async def _totals(request: Request) -> Totals:
    taker: TotalsTaker = request.app.state.totals
    return taker.take()


Sums = Annotated[Totals, Depends(_totals)]
