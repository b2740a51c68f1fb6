"""Delivery acknowledgement timeouts, checked about once a second, without a timer per delivery.

Delivery tags grow, so each check only notes the last tag of a channel: what was unacknowledged then
has waited at least since then. If a delivery waits longer than its consumer or its queue allows,
the channel is closed, and all its unacknowledged messages are requeued. Event-loop thread only.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from leveret.model.errors import PreconditionFailed
from leveret.queues.delivery import Delivery

if TYPE_CHECKING:
    from leveret.amqp_server.channel import Channel
    from leveret.broker import VirtualHost

CONSUMER_TIMEOUT = "x-consumer-timeout"
_NO_METHOD = (0, 0)


class AckTimeouts:
    """The acknowledgement timeouts of all channels of one server."""

    def __init__(self) -> None:
        self._tags_at: dict[Channel, deque[tuple[float, int]]] = {}
        """Per channel: the last delivery tag at the time of earlier checks."""
        self._longest: WeakKeyDictionary[VirtualHost, tuple[int, int]] = WeakKeyDictionary()
        """Per virtual host: its version, and the longest timeout among its queues."""

    def check(self, channels: list[Channel], now: float) -> None:
        """Close the channels with an overdue delivery; `channels` are all open channels."""
        watched = [
            channel for channel in channels if channel.unacked and self._has_timeout(channel)
        ]
        if watched or self._tags_at:
            self._tags_at = {channel: self._tags_at.get(channel) or deque() for channel in watched}
        for channel, tags_at in self._tags_at.items():
            if not channel.unacked:
                continue  # it was closed together with a channel before it
            first = next(iter(channel.unacked)).first_tag
            while tags_at and tags_at[0][1] < first:
                tags_at.popleft()
            if not tags_at or tags_at[-1][1] < channel.last_tag:
                tags_at.append((now, channel.last_tag))
            timeout = _overdue(channel, tags_at, now)
            if timeout:
                error = PreconditionFailed(
                    f"delivery acknowledgement on channel {channel.number} timed out. "
                    f"Timeout value used: {timeout} ms. This timeout value can be configured, "
                    "see consumers doc guide to learn more"
                )
                channel.connection.refuse(channel.number, error, _NO_METHOD)

    def _has_timeout(self, channel: Channel) -> bool:
        vhost = channel.vhost
        cached = self._longest.get(vhost)
        if cached is None or cached[0] != vhost.version:
            timeouts = (queue.consumer_timeout_ms for queue in vhost.queues.values())
            cached = self._longest[vhost] = (vhost.version, max(timeouts, default=0))
        return cached[1] > 0 or any(
            CONSUMER_TIMEOUT in consumer.arguments for consumer in channel.consumers.values()
        )


def _overdue(channel: Channel, tags_at: deque[tuple[float, int]], now: float) -> int:
    """The timeout in milliseconds that a delivery has exceeded; 0 if none has.

    Of messages that were delivered together, the first waits longest.
    """
    checks = iter(tags_at)
    checked_at, last_tag = next(checks)
    for delivery in channel.unacked:
        while delivery.first_tag > last_tag:
            check = next(checks, None)
            if check is None:
                return 0
            checked_at, last_tag = check
        timeout = _timeout_of(delivery)
        if timeout and (now - checked_at) * 1000 >= timeout:
            return timeout
    return 0


def _timeout_of(delivery: Delivery) -> int:
    consumer = delivery.consumer
    if consumer is not None and CONSUMER_TIMEOUT in consumer.arguments:
        return int(consumer.arguments[CONSUMER_TIMEOUT])
    return delivery.queue.consumer_timeout_ms


def validate_timeout(value: object) -> None:
    """Refuse a consumer's own timeout that is not a number of milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PreconditionFailed(
            f"invalid arg '{CONSUMER_TIMEOUT}': {value!r} is not a whole number from 0"
        )
