"""Values over time: a sample every five seconds, stored only if a value has changed.

Idle objects cost nothing: a series gets a point when its values differ from the last one, and
reading fills the gaps forward. Counters are plain additions where things happen; sampling reads
them. Event-loop thread only; nothing here outlives the process.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from leveret.broker.runtime.slices import Steps, run_at_once
from leveret.queues.counters import QueueCounters
from leveret.queues.port import Queue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker, ChannelEntry, ConnectionEntry
    from leveret.broker.vhost import VirtualHost
    from leveret.exchange import Exchange

SAMPLE_MS = 5_000
QUEUE_POINTS = 121
CLIENT_POINTS = 15
"""At least a minute; there may be very many connections and channels."""
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
TRAFFIC_FIELDS = ("recv_oct", "send_oct")
"""Bytes received and sent, by RabbitMQ's names."""
VHOST_FIELDS = (*QUEUE_FIELDS, *CLIENT_FIELDS, *TRAFFIC_FIELDS)
EXCHANGE_FIELDS = ("publish_in", "publish_out")
CHANNEL_FIELDS = (
    "publish", "confirm", "return_unroutable", "drop_unroutable",
    "deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver", "ack",
)  # fmt: skip

Traffic = dict["VirtualHost", tuple[int, int]]
"""Bytes received and sent, by virtual host."""


class Measured(Protocol):
    """Several values over time, each addressed by its index."""

    def rate(self, index: int) -> float: ...

    def samples(self, index: int, age_s: int, step_s: int) -> list[tuple[int, int]]: ...


class Series:
    """Points in one array: a time followed by its values.

    An object per point would outlive the short-lived connections around it and keep their memory
    pages from being returned to the system.
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
            self._numbers = array("q", (time_ms, *values))  # exactly as large as needed
        if len(self._numbers) > 2 * self._points * self._width:
            del self._numbers[: self._points * self._width]

    def rate(self, index: int) -> float:
        """Change per second over the last sampling interval."""
        numbers, width = self._numbers, self._width
        last = len(numbers) - width
        previous = last - width
        if not width or previous < 0 or numbers[last] < self._sampled_ms:
            return 0.0
        change = numbers[last + 1 + index] - numbers[previous + 1 + index]
        return change * 1000 / max(1, numbers[last] - numbers[previous])

    def samples(self, index: int, age_s: int, step_s: int) -> list[tuple[int, int]]:
        """(time, value) every `step_s` back to `age_s` ago, newest first."""
        width = self._width
        if not width or step_s <= 0:
            return []
        times, values = self._numbers[::width], self._numbers[index + 1 :: width]
        samples = []
        for age in range(0, age_s + 1, step_s):
            time_ms = self._sampled_ms - age * 1000
            point = bisect_right(times, time_ms) - 1
            if point < 0:
                break
            samples.append((time_ms, values[point]))
        return samples


class SeriesSum:
    """The sum of several series that are sampled together."""

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
    """The series of all objects of a broker; the resource monitor runs `sample_steps`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sampled_ms = 0
        self.totals = Series(TOTAL_POINTS)
        self.queues: dict[Queue, Series] = {}
        self.exchanges: dict[Exchange, Series] = {}
        self.vhosts: dict[VirtualHost, Series] = {}
        self.connections: dict[ConnectionEntry, Series] = {}
        self.channels: dict[ChannelEntry, Series] = {}

    def sample(self) -> None:
        run_at_once(self.sample_steps())

    def sample_steps(self) -> Steps[None]:
        now = self._broker.clock.wall_ms()
        yield from self._sample_topology(now)
        yield from self._sample_clients(now)
        self._sampled_ms = now

    def _sample_topology(self, now: int) -> Steps[None]:
        queues: dict[Queue, Series] = {}
        exchanges: dict[Exchange, Series] = {}
        vhosts: dict[VirtualHost, Series] = {}
        traffic, sums_by_vhost = self.traffic(), []
        for vhost in list(self._broker.vhosts.values()):
            queue_totals = [0] * len(QUEUE_FIELDS)
            for queue in list(vhost.queues.values()):
                values = queue_values(queue)
                add_values(queue_totals, values)
                series = queues[queue] = self.queues.get(queue) or self._new(QUEUE_POINTS, values)
                series.add(now, values)
                yield
            for exchange in list(vhost.exchanges.values()):
                counts = (exchange.published_in, exchange.published_out)
                if any(counts):
                    series = self.exchanges.get(exchange) or self._new(QUEUE_POINTS, counts)
                    exchanges[exchange] = series
                    series.add(now, counts)
                    yield
            sums_by_vhost.append(queue_totals)
            values = _vhost_values(vhost, queue_totals, traffic)
            series = vhosts[vhost] = self.vhosts.get(vhost) or self._new(QUEUE_POINTS, values)
            series.add(now, values)
            yield
        self.queues, self.exchanges, self.vhosts = queues, exchanges, vhosts
        self.totals.add(now, self.totals_of(sums_by_vhost))

    def _sample_clients(self, now: int) -> Steps[None]:
        connections: dict[ConnectionEntry, Series] = {}
        channels: dict[ChannelEntry, Series] = {}
        for connection in list(self._broker.connections):
            traffic = (connection.received, connection.sent)
            series = self.connections.get(connection) or self._new(CLIENT_POINTS, traffic)
            connections[connection] = series
            series.add(now, traffic)
            for channel in list(connection.channels.values()):
                counts = channel.counts()
                series = self.channels.get(channel) or self._new(CLIENT_POINTS, counts)
                channels[channel] = series
                series.add(now, counts)
                yield
            yield
        self.connections, self.channels = connections, channels

    def _new(self, points: int, values: tuple[int, ...]) -> Series:
        """A series of an object that was new, or had done nothing, at the last sample."""
        series = Series(points)
        if self._sampled_ms:
            series.add(self._sampled_ms, (0,) * len(values))
        return series

    def traffic(self) -> Traffic:
        """Bytes that the open connections of each virtual host have received and sent."""
        traffic: Traffic = {}
        for connection in self._broker.connections:
            received, sent = traffic.get(connection.vhost, (0, 0))
            traffic[connection.vhost] = (received + connection.received, sent + connection.sent)
        return traffic

    def totals_of(self, sums_by_vhost: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Everything since the start, including deleted queues."""
        counters = self._broker.counters
        queue_totals = sums([counters.deleted_queues, *sums_by_vhost])
        queue_totals[0] = counters.published
        by_vhost = [vhost.counters for vhost in self._broker.vhosts.values()]
        return (
            *queue_totals,
            counters.confirmed,
            counters.returned_unroutable,
            counters.dropped_unroutable,
            counters.get_empty,
            counters.connections_opened,
            counters.connections_closed,
            counters.channels_opened,
            counters.channels_closed,
            sum(vhost.queues_declared for vhost in by_vhost),
            sum(vhost.queues_created for vhost in by_vhost),
            sum(vhost.queues_deleted for vhost in by_vhost),
        )


def vhost_values(vhost: VirtualHost, traffic: Traffic) -> tuple[int, ...]:
    """The current values in the order of VHOST_FIELDS."""
    return _vhost_values(vhost, queue_sums(vhost), traffic)


def _vhost_values(
    vhost: VirtualHost, queue_sums: Sequence[int], traffic: Traffic
) -> tuple[int, ...]:
    """As in RabbitMQ, `publish` counts what clients have published, whether routed or not."""
    counters = vhost.counters
    totals = sums([counters.deleted_queues, queue_sums])
    totals[0] = counters.published + sum(
        exchange.published_in for exchange in vhost.exchanges.values() if not exchange.spec.internal
    )
    received, sent = traffic.get(vhost, (0, 0))
    return (
        *totals,
        counters.confirmed,
        counters.returned_unroutable,
        counters.dropped_unroutable,
        counters.get_empty,
        counters.received + received,
        counters.sent + sent,
    )


def queue_sums(vhost: VirtualHost) -> list[int]:
    """Sums over the existing queues, in the order of QUEUE_FIELDS."""
    return sums([queue_values(queue) for queue in vhost.queues.values()])


def sums(rows: Sequence[Sequence[int]], width: int = len(QUEUE_FIELDS)) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)] or [0] * width


def add_values(sums: list[int], values: Sequence[int]) -> None:
    """Add to each sum; most queues of a large broker are idle."""
    if any(values):
        for index, value in enumerate(values):
            sums[index] += value


def queue_values(queue: Queue) -> tuple[int, ...]:
    """In the order of QUEUE_FIELDS: counters, and then numbers of messages."""
    return (*counter_values(queue.counters), queue.ready_count, queue.unacked_count)


def counter_values(counters: QueueCounters) -> tuple[int, ...]:
    return (
        counters.published,
        counters.delivered_ack,
        counters.delivered_no_ack,
        counters.got_ack,
        counters.got_no_ack,
        counters.redelivered,
        counters.acked,
    )
