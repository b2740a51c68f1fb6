"""What the hub wants to know of a virtual host: who is told when something is made or goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bindings import Binding
from exchange import Exchange
from leveret.broker import firehose, governing
from queues import HeldQueue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost


def listen(broker: Broker, vhost: VirtualHost) -> None:
    """Called once, when the virtual host is made."""

    def made(one: Exchange | HeldQueue) -> None:
        governing.apply_policy(broker, vhost, one)
        firehose.watch(broker, vhost, one)
        broker.events.topology(vhost, one, "created")

    def exchange_gone(exchange: Exchange) -> None:
        broker.stations.gone(vhost, exchange)
        if not exchange.spec.internal:
            vhost.counters.published += exchange.published_in
        broker.events.topology(vhost, exchange, "deleted")

    def bound(exchange: Exchange, binding: Binding) -> None:
        broker.stations.bound(vhost, exchange, binding)
        broker.events.binding(vhost, binding, "created")

    vhost.on_made = made
    vhost.on_exchange_gone = exchange_gone
    vhost.on_bound = bound
    vhost.on_unbound = lambda binding: broker.events.binding(vhost, binding, "deleted")
    vhost.doorway = lambda station, keys: broker.stations.doorway(vhost, station, keys)
