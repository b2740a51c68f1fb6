"""Numbers over time: a sample every five seconds, kept only where something changed.

Idle objects cost nothing: a series gets a point when its values differ from the last one, and
reading fills the gaps forward. Counting is done where things happen, as plain additions; sampling
reads those counters.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from queues import HeldQueue

if TYPE_CHECKING:
    from exchange import Exchange
    from leveret.broker.broker import Broker, ChannelEntry, ConnectionEntry
    from leveret.broker.vhost import VirtualHost

SAMPLE_MS = 5_000
QUEUE_POINTS = 121
CLIENT_POINTS = 15
"""A minute at least; there may be very many connections and channels."""
TOTAL_POINTS = 5_761  # eight hours

QUEUE_FIELDS = (
    "publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack",
    "messages_ready", "messages_unacknowledged",
)  # fmt: skip
CLIENT_FIELDS = ("confirm", "return_unroutable", "drop_unroutable", "get_empty")
TOTAL_FIELDS = (
    *QUEUE_FIELDS, *CLIENT_FIELDS,
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_created", "queue_deleted",
)  # fmt: skip
OCTET_FIELDS = ("recv_oct", "send_oct")
VHOST_FIELDS = (*QUEUE_FIELDS, *CLIENT_FIELDS, *OCTET_FIELDS)
EXCHANGE_FIELDS = ("publish_in", "publish_out")
CHANNEL_FIELDS = (
    "publish", "confirm", "return_unroutable", "drop_unroutable",
    "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack",
)  # fmt: skip

Octets = dict["VirtualHost", tuple[int, int]]
"""Received and sent, by virtual host."""


class Measured(Protocol):
    """Values over time, each known by its index."""

    def rate(self, index: int) -> float: ...

    def samples(self, index: int, age_s: int, step_s: int) -> list[tuple[int, int]]: ...


class Series:
    """Numbers in one array, a time and its values after the other.

    An object for each would outlive the connections that come and go meanwhile, and keep what
    memory they lay among from being given back.
    """

    __slots__ = ("_numbers", "_points", "_sampled_ms", "_width")

    def __init__(self, points: int) -> None:
        self._points = points
        self._numbers = array("q")
        self._width = 0
        self._sampled_ms = 0

    def add(self, time_ms: int, values: tuple[int, ...]) -> None:
        self._width = len(values) + 1
        last = self._numbers[1 - self._width :]
        if tuple(last) != values:
            if last and self._sampled_ms > self._numbers[-self._width]:
                self._append(self._sampled_ms, last)
            self._append(time_ms, values)
        self._sampled_ms = time_ms

    def _append(self, time_ms: int, values: Iterable[int]) -> None:
        if self._numbers:
            self._numbers.append(time_ms)
            self._numbers.extend(values)
        else:
            self._numbers = array("q", (time_ms, *values))  # one that grows is not made apart
        if len(self._numbers) > 2 * self._points * self._width:
            del self._numbers[: self._points * self._width]

    def rate(self, index: int) -> float:
        """Change per second over the last sampling interval."""
        numbers, width = self._numbers, self._width
        now = len(numbers) - width
        before = now - width
        if not width or before < 0 or numbers[now] < self._sampled_ms:
            return 0.0
        change = numbers[now + 1 + index] - numbers[before + 1 + index]
        return change * 1000 / max(1, numbers[now] - numbers[before])

    def samples(self, index: int, age_s: int, step_s: int) -> list[tuple[int, int]]:
        """(time, value) every `step_s` back to `age_s` ago, newest first."""
        width = self._width
        if not width or step_s <= 0:
            return []
        times, values = self._numbers[::width], self._numbers[index + 1 :: width]
        found = []
        for back in range(0, age_s + 1, step_s):
            time_ms = self._sampled_ms - back * 1000
            place = bisect_right(times, time_ms) - 1
            if place < 0:
                break
            found.append((time_ms, values[place]))
        return found


class SeriesSum:
    """Several series that are sampled together, as one."""

    def __init__(self, parts: Sequence[Measured]) -> None:
        self._parts = parts

    def rate(self, index: int) -> float:
        return sum(part.rate(index) for part in self._parts)

    def samples(self, index: int, age_s: int, step_s: int) -> list[tuple[int, int]]:
        sums: dict[int, int] = {}
        for part in self._parts:
            for time_ms, value in part.samples(index, age_s, step_s):
                sums[time_ms] = sums.get(time_ms, 0) + value
        return sorted(sums.items(), reverse=True)


class Metrics:
    """Made by the broker; `sample` is called by its upkeep."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sampled_ms = 0
        self.totals = Series(TOTAL_POINTS)
        self.queues: dict[HeldQueue, Series] = {}
        self.exchanges: dict[Exchange, Series] = {}
        self.vhosts: dict[VirtualHost, Series] = {}
        self.connections: dict[ConnectionEntry, Series] = {}
        self.channels: dict[ChannelEntry, Series] = {}

    def sample(self) -> None:
        now = self._broker.clock.wall_ms()
        self._sample_topology(now)
        self._sample_clients(now)
        self._sampled_ms = now

    def _sample_topology(self, now: int) -> None:
        queues: dict[HeldQueue, Series] = {}
        exchanges: dict[Exchange, Series] = {}
        vhosts: dict[VirtualHost, Series] = {}
        octets, held = self.octets(), []
        for vhost in self._broker.vhosts.values():
            rows = []
            for queue in vhost.queues.values():
                rows.append(queue_values(queue))
                series = queues[queue] = self.queues.get(queue) or self._new(QUEUE_POINTS, rows[-1])
                series.add(now, rows[-1])
            for exchange in vhost.exchanges.values():
                values = (exchange.published_in, exchange.published_out)
                if any(values):
                    series = self.exchanges.get(exchange) or self._new(QUEUE_POINTS, values)
                    exchanges[exchange] = series
                    series.add(now, values)
            held.append(sums(rows))
            sampled = _vhost_values(vhost, held[-1], octets)
            series = vhosts[vhost] = self.vhosts.get(vhost) or self._new(QUEUE_POINTS, sampled)
            series.add(now, sampled)
        self.queues, self.exchanges, self.vhosts = queues, exchanges, vhosts
        self.totals.add(now, self._totals(held))

    def _sample_clients(self, now: int) -> None:
        connections: dict[ConnectionEntry, Series] = {}
        channels: dict[ChannelEntry, Series] = {}
        for one in self._broker.connections:
            octets = (one.received, one.sent)
            series = self.connections.get(one) or self._new(CLIENT_POINTS, octets)
            connections[one] = series
            series.add(now, octets)
            for channel in one.channels.values():
                counts = channel.counts()
                series = self.channels.get(channel) or self._new(CLIENT_POINTS, counts)
                channels[channel] = series
                series.add(now, counts)
        self.connections, self.channels = connections, channels

    def _new(self, points: int, values: tuple[int, ...]) -> Series:
        """For something that was not there yet, or had done nothing, at the last sample."""
        series = Series(points)
        if self._sampled_ms:
            series.add(self._sampled_ms, (0,) * len(values))
        return series

    def octets(self) -> Octets:
        """What the open connections of each virtual host have received and sent."""
        found: Octets = {}
        for one in self._broker.connections:
            received, sent = found.get(one.vhost, (0, 0))
            found[one.vhost] = (received + one.received, sent + one.sent)
        return found

    def current_totals(self) -> tuple[int, ...]:
        """Everything since the start, queues that have gone included."""
        return self._totals([queue_sums(vhost) for vhost in self._broker.vhosts.values()])

    def _totals(self, held: Sequence[Sequence[int]]) -> tuple[int, ...]:
        broker, counters = self._broker, self._broker.counters
        together = sums([counters.gone_queues, *held])
        together[0] = counters.published
        vhosts = broker.vhosts.values()
        return (
            *together,
            counters.confirmed,
            counters.returned_unroutable,
            counters.dropped_unroutable,
            counters.get_empty,
            counters.connections_opened,
            counters.connections_closed,
            counters.channels_opened,
            counters.channels_closed,
            sum(vhost.queues_declared for vhost in vhosts),
            sum(vhost.queues_created for vhost in vhosts),
            sum(vhost.queues_deleted for vhost in vhosts),
        )


def vhost_values(vhost: VirtualHost, octets: Octets) -> tuple[int, ...]:
    """In the order of VHOST_FIELDS, as they are now."""
    return _vhost_values(vhost, queue_sums(vhost), octets)


def _vhost_values(vhost: VirtualHost, held: Sequence[int], octets: Octets) -> tuple[int, ...]:
    """As with RabbitMQ, what clients have published counts, whatever it reached."""
    counters = vhost.counters
    together = sums([counters.gone_queues, held])
    together[0] = counters.published + sum(
        one.published_in for one in vhost.exchanges.values() if not one.spec.internal
    )
    received, sent = octets.get(vhost, (0, 0))
    return (
        *together,
        counters.confirmed,
        counters.returned_unroutable,
        counters.dropped_unroutable,
        counters.get_empty,
        counters.received + received,
        counters.sent + sent,
    )


def queue_sums(vhost: VirtualHost) -> list[int]:
    """Of the queues there are, in the order of QUEUE_FIELDS."""
    return sums([queue_values(queue) for queue in vhost.queues.values()])


def sums(rows: Sequence[Sequence[int]], width: int = len(QUEUE_FIELDS)) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)] or [0] * width


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
