"""How long a delivery may wait for its ack: looked at now and then, no clock per delivery.

Delivery tags grow, so a channel need only note how far they had come at each look: what was
outstanding then has waited at least since. A delivery that waits for longer than its consumer or
its queue allows costs the client its channel; everything unacknowledged on it goes back.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from leveret.model.errors import PreconditionFailed
from queues import ClassicQueue

if TYPE_CHECKING:
    from amqp_server.channel import Channel
    from amqp_server.consumer import Unacked
    from leveret.broker import VirtualHost

CONSUMER_TIMEOUT = "x-consumer-timeout"


class Patience:
    """Looks after the sessions of one server; `look` is called a few times a second."""

    def __init__(self) -> None:
        self._marks: dict[Channel, deque[tuple[float, int]]] = {}
        self._shortest: WeakKeyDictionary[VirtualHost, tuple[int, int]] = WeakKeyDictionary()

    def look(self, channels: list[Channel], now: float) -> None:
        """All open channels; closes those that were waited for too long."""
        watched = [one for one in channels if one.unacked and self._is_watched(one)]
        if watched or self._marks:
            self._marks = {channel: self._marks.get(channel) or deque() for channel in watched}
        for channel, marks in self._marks.items():
            first = next(iter(channel.unacked))
            while marks and marks[0][1] < first:
                marks.popleft()
            if not marks or marks[-1][1] < channel.last_tag:
                marks.append((now, channel.last_tag))
            timeout = _overdue(channel, marks, now)
            if timeout:
                channel.session.run(channel.number, partial(_give_up, channel, timeout))

    def _is_watched(self, channel: Channel) -> bool:
        vhost = channel.vhost
        known = self._shortest.get(vhost)
        if known is None or known[0] != vhost.version:
            asked = (
                queue.options.consumer_timeout or 0
                for queue in vhost.queues.values()
                if isinstance(queue, ClassicQueue)
            )
            known = self._shortest[vhost] = (vhost.version, max(asked, default=0))
        return known[1] > 0 or any(
            CONSUMER_TIMEOUT in consumer.arguments for consumer in channel.consumers.values()
        )


def _overdue(channel: Channel, marks: deque[tuple[float, int]], now: float) -> int:
    """The timeout in milliseconds that a delivery has outlasted; 0: none has."""
    at = iter(marks)
    seen, upto = next(at)
    for tag, held in channel.unacked.items():
        while tag > upto:
            later = next(at, None)
            if later is None:
                return 0
            seen, upto = later
        timeout = _timeout(held)
        if timeout and (now - seen) * 1000 >= timeout:
            return timeout
    return 0


def _timeout(held: Unacked) -> int:
    _, queue, consumer = held
    if consumer is not None and CONSUMER_TIMEOUT in consumer.arguments:
        return int(consumer.arguments[CONSUMER_TIMEOUT])
    return (queue.options.consumer_timeout or 0) if isinstance(queue, ClassicQueue) else 0


def _give_up(channel: Channel, timeout: int) -> None:
    channel.session.wire.last_method = (0, 0)  # nothing the client just asked
    raise PreconditionFailed(
        f"delivery acknowledgement on channel {channel.number} timed out. "
        f"Timeout value used: {timeout} ms. This timeout value can be configured, "
        "see consumers doc guide to learn more"
    )


def check_timeout(value: object) -> None:
    """Refuse a consumer's own timeout that is no number of milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PreconditionFailed(
            f"invalid arg '{CONSUMER_TIMEOUT}': {value!r} is not a whole number from 0"
        )
