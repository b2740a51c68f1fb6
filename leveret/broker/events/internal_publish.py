"""Messages that the broker itself publishes to one of its internal exchanges.

They report an action and must not make it fail: an exception raised while such a message is built
or routed ends in `failures_logged`, which logs it (at most one line a second, with the number of
failures so far), and the action goes on. Event-loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leveret.broker.names import fit_short_string
from leveret.exchange import Exchange, route
from leveret.model.message import Address, Body, Message, encode_properties

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

log = logging.getLogger("leveret.broker")


class PublishFailures:
    """Counts events that could not be published, and logs some of them."""

    def __init__(self) -> None:
        self.count = 0
        self._logged_at = float("-inf")

    def add(self, label: str, now: float) -> None:
        """Call it while the exception is handled."""
        self.count += 1
        if now - self._logged_at >= 1:
            self._logged_at = now
            log.exception("could not publish %s (%d failures)", label, self.count)


@contextmanager
def failures_logged(broker: Broker, label: str) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - the action that is reported must not fail
        broker.events.failures.add(label, broker.clock.monotonic())


def publish_internal(
    broker: Broker,
    vhost: VirtualHost,
    exchange: Exchange,
    key: str,
    headers: Mapping[str, Any],
    body: Body = b"",
) -> None:
    """Does nothing if no queue is bound to the exchange for this key."""
    key = fit_short_string(key)
    names = route(vhost.exchanges, exchange, [key], dict(headers)).queues
    queues = [vhost.queues[name] for name in names if name in vhost.queues]
    if not queues:
        return
    seconds = broker.clock.wall_ms() // 1000
    properties = {"headers": dict(headers), "delivery_mode": 2, "timestamp": seconds}
    message = Message.build(Address.of(exchange.name, key), encode_properties(properties), body)
    exchange.published_in += 1
    exchange.published_out += len(queues)
    broker.enqueue_internal(queues, message)
