"""Messages the broker itself sends to one of its internal exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from exchange import Exchange, route
from leveret.model.history import Keep
from leveret.model.message import Address, Message
from leveret.model.properties import encode_properties

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

SHORT = 255


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
