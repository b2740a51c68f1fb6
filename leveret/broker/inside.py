"""Messages the broker itself sends to one of its internal exchanges.

They tell of what is being done and must not get in its way: whatever goes wrong between the facts
and the queues ends in `aside`, which logs it (a line a second at most, with how many there have
been), and what was being done goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from exchange import Exchange, route
from leveret.model.history import Keep
from leveret.model.message import Address, Message
from leveret.model.properties import encode_properties

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

log = logging.getLogger("leveret.broker")

SHORT = 255


class Mishaps:
    """What could not be told."""

    def __init__(self) -> None:
        self.count = 0
        self._logged_at = float("-inf")

    def note(self, what: str, now: float) -> None:
        """From where the exception is at hand."""
        self.count += 1
        if now - self._logged_at >= 1:
            self._logged_at = now
            log.exception("%s could not be told (%d such so far)", what, self.count)


@contextmanager
def aside(broker: Broker, what: str) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - whoever acts has done nothing wrong
        broker.events.mishaps.note(what, broker.clock.monotonic())


def send_inside(
    broker: Broker,
    vhost: VirtualHost,
    exchange: Exchange,
    key: str,
    headers: Mapping[str, Any],
    body: bytes = b"",
) -> None:
    """To whoever is bound there; nobody is told when nobody is."""
    key = key.encode()[:SHORT].decode(errors="ignore")
    names = route(vhost.exchanges, exchange, [key], dict(headers)).queues
    queues = [vhost.queues[name] for name in names if name in vhost.queues]
    if not queues:
        return
    now = broker.clock.wall_ms()
    properties = {"headers": dict(headers), "delivery_mode": 2, "timestamp": now // 1000}
    message = Message.build(Address.of(exchange.name, key), encode_properties(properties), body)
    message.id, message.time_ms = next(broker.store.ids), now
    message.keep = max((queue.keep for queue in queues), default=Keep.NOTHING)
    exchange.published_in += 1
    exchange.published_out += len(queues)
    for queue in queues:
        queue.enqueue(message)
        broker.turn.touch(queue)
