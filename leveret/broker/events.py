"""What happens in the broker, told through `amq.rabbitmq.event` in the default vhost.

Routing keys are RabbitMQ's (`queue.created`, `connection.closed`, `user.deleted`, …), facts are
headers, bodies are empty. While nothing is bound there an event costs one look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bindings import Binding
from exchange import Exchange
from leveret.broker.inside import send_inside
from leveret.broker.vhost import EVENT_EXCHANGE
from queues import HeldQueue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker, ConnectionEntry
    from leveret.broker.vhost import VirtualHost


class Events:
    def __init__(self, broker: Broker, vhost_name: str) -> None:
        self._broker = broker
        self._vhost_name = vhost_name

    def tell(self, key: str, facts: Mapping[str, Any]) -> None:
        vhost = self._broker.vhosts.get(self._vhost_name)
        exchange = vhost.exchanges.get(EVENT_EXCHANGE) if vhost is not None else None
        if vhost is None or exchange is None or not exchange.bindings:
            return
        known = {name: value for name, value in facts.items() if value is not None}
        known["timestamp_in_ms"] = self._broker.clock.wall_ms()
        send_inside(self._broker, vhost, exchange, key, known)

    # Fronts ------------------------------------------------------------------------------------

    def connection(self, connection: ConnectionEntry, what: str) -> None:
        self.tell(f"connection.{what}", connection.describe())

    def channel(self, of: ConnectionEntry, number: int, what: str) -> None:
        facts = {"name": f"{of.name} ({number})", "number": number, "connection": of.name}
        self.tell(f"channel.{what}", {**facts, "user": of.user.name, "vhost": of.vhost.name})

    def consumer(self, vhost: VirtualHost, queue: HeldQueue, tag: str, what: str) -> None:
        facts = {"consumer_tag": tag, "queue": queue.name, "vhost": vhost.name}
        self.tell(f"consumer.{what}", facts)

    # Topology ----------------------------------------------------------------------------------

    def topology(self, vhost: VirtualHost, made: Exchange | HeldQueue, what: str) -> None:
        spec = made.spec
        facts = {
            "name": made.name,
            "vhost": vhost.name,
            "durable": spec.durable,
            "auto_delete": spec.auto_delete,
            "arguments": dict(spec.arguments),
            "type": spec.kind,
        }
        kind = "exchange" if isinstance(made, Exchange) else "queue"
        self.tell(f"{kind}.{what}", facts)

    def binding(self, vhost: VirtualHost, binding: Binding, what: str) -> None:
        facts = {
            "source_name": binding.source,
            "source_kind": "exchange",
            "destination_name": binding.destination.name,
            "destination_kind": str(binding.destination.kind),
            "routing_key": binding.routing_key,
            "arguments": dict(binding.arguments),
            "vhost": vhost.name,
        }
        self.tell(f"binding.{what}", facts)

    def vhost(self, name: str, what: str) -> None:
        self.tell(f"vhost.{what}", {"name": name})
