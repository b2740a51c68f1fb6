"""Numbers over time: a sample every five seconds, kept only where something changed.

Idle objects cost nothing: a series gets a point when its values differ from the last one, and
reading fills the gaps forward.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from queues import HeldQueue

if TYPE_CHECKING:
    from exchange import Exchange
    from leveret.broker.broker import Broker

SAMPLE_MS = 5_000
QUEUE_POINTS = 121
TOTAL_POINTS = 5_761  # eight hours

QUEUE_FIELDS = (
    "publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack",
    "messages_ready", "messages_unacknowledged",
)  # fmt: skip
TOTAL_FIELDS = (
    *QUEUE_FIELDS, "confirm", "return_unroutable", "drop_unroutable", "get_empty",
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_created", "queue_deleted",
)  # fmt: skip
EXCHANGE_FIELDS = ("publish_in", "publish_out")


class Series:
    def __init__(self, points: int) -> None:
        self._points: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=points)
        self._sampled_ms = 0

    def add(self, time_ms: int, values: tuple[int, ...]) -> None:
        if not self._points or self._points[-1][1] != values:
            if self._points and self._sampled_ms > self._points[-1][0]:
                self._points.append((self._sampled_ms, self._points[-1][1]))
            self._points.append((time_ms, values))
        self._sampled_ms = time_ms

    def rate(self, index: int) -> float:
        """Change per second over the last sampling interval."""
        if len(self._points) < 2 or self._points[-1][0] < self._sampled_ms:
            return 0.0
        (before, old), (now, new) = self._points[-2], self._points[-1]
        return (new[index] - old[index]) * 1000 / max(1, now - before)

    def samples(self, index: int, age_s: int, step_s: int) -> list[tuple[int, int]]:
        """(time, value) every `step_s` back to `age_s` ago, newest first."""
        if not self._points or step_s <= 0:
            return []
        times = [time for time, _ in self._points]
        found = []
        for back in range(0, age_s + 1, step_s):
            time_ms = self._sampled_ms - back * 1000
            place = bisect_right(times, time_ms) - 1
            if place < 0:
                break
            found.append((time_ms, self._points[place][1][index]))
        return found


class Metrics:
    """Made by the broker; `sample` is called by its upkeep."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.totals = Series(TOTAL_POINTS)
        self.queues: dict[HeldQueue, Series] = {}
        self.exchanges: dict[Exchange, Series] = {}

    def sample(self) -> None:
        now = self._broker.clock.wall_ms()
        self.totals.add(now, self.current_totals())
        queues: dict[HeldQueue, Series] = {}
        exchanges: dict[Exchange, Series] = {}
        for vhost in self._broker.vhosts.values():
            for queue in vhost.queues.values():
                series = queues[queue] = self.queues.get(queue) or Series(QUEUE_POINTS)
                series.add(now, queue_values(queue))
            for exchange in vhost.exchanges.values():
                values = (exchange.published_in, exchange.published_out)
                if any(values) or exchange in self.exchanges:
                    series = self.exchanges.get(exchange) or Series(QUEUE_POINTS)
                    exchanges[exchange] = series
                    series.add(now, values)
        self.queues, self.exchanges = queues, exchanges

    def current_totals(self) -> tuple[int, ...]:
        """Everything since the start, queues that have gone included."""
        broker, counters = self._broker, self._broker.counters
        sums = list(counters.gone_queues)
        declared = created = deleted = 0
        for vhost in broker.vhosts.values():
            declared += vhost.queues_declared
            created += vhost.queues_created
            deleted += vhost.queues_deleted
            for queue in vhost.queues.values():
                for index, value in enumerate(queue_values(queue)):
                    sums[index] += value
        sums[0] = counters.published
        return (
            *sums,
            counters.confirmed,
            counters.returned_unroutable,
            counters.dropped_unroutable,
            counters.get_empty,
            counters.connections_opened,
            counters.connections_closed,
            counters.channels_opened,
            counters.channels_closed,
            declared,
            created,
            deleted,
        )


def queue_values(queue: HeldQueue) -> tuple[int, ...]:
    counters = queue.counters
    return (
        counters.published,
        counters.delivered_ack,
        counters.delivered_no_ack,
        counters.got_ack,
        counters.got_no_ack,
        counters.redelivered,
        counters.acked,
        queue.ready_count,
        queue.unacked_count,
    )
