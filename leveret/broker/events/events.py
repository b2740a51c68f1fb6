"""Events of the broker, published to `amq.rabbitmq.event` in the default vhost.

Routing keys are RabbitMQ's (`queue.created`, `connection.closed`, `user.deleted`, …), facts are
headers, bodies are empty. While nothing is bound to the exchange an event costs one check.
Event-loop thread only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from leveret.bindings import Binding
from leveret.broker.events.actor import CurrentActor
from leveret.broker.events.internal_publish import (
    PublishFailures,
    failures_logged,
    publish_internal,
)
from leveret.broker.policies.parameters import GLOBAL, VHOST_LIMITS, Key
from leveret.broker.policies.policies import EXCHANGE, Policy
from leveret.broker.vhost import EVENT_EXCHANGE
from leveret.exchange import Exchange
from leveret.model.clients import ConnectionInfo
from leveret.model.errors import BrokerError
from leveret.model.store import StoreState
from leveret.queues.port import Queue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker, ConnectionEntry
    from leveret.broker.vhost import VirtualHost


_CONNECTION_FACTS = tuple(field.name for field in fields(ConnectionInfo))
_ACTOR = "user_who_performed_action"
_WITHOUT_ACTOR = ("user.authentication.", "alarm.")


def _as_text(value: Any) -> Any:
    """JSON for values that AMQP tables cannot hold: deep nesting, long names, large numbers."""
    is_small = isinstance(value, str) or (isinstance(value, int) and abs(value) < 1 << 63)
    return value if is_small else json.dumps(value, default=str)


class Events:
    def __init__(self, broker: Broker, vhost_name: str) -> None:
        self._broker = broker
        self._vhost_name = vhost_name
        self.actor = CurrentActor()
        self.failures = PublishFailures()

    def publish(self, key: str, facts: Mapping[str, Any]) -> None:
        """Publish an event; it never fails (see `failures_logged`)."""
        with failures_logged(self._broker, f"event {key}"):
            self._publish(key, facts)

    @property
    def has_listeners(self) -> bool:
        """Whether anything is bound to the exchange: checked before the facts of many changes."""
        vhost = self._broker.vhosts.get(self._vhost_name)
        exchange = vhost.exchanges.get(EVENT_EXCHANGE) if vhost is not None else None
        return exchange is not None and bool(exchange.bindings)

    def _publish(self, key: str, facts: Mapping[str, Any]) -> None:
        vhost = self._broker.vhosts.get(self._vhost_name)
        exchange = vhost.exchanges.get(EVENT_EXCHANGE) if vhost is not None else None
        if vhost is None or exchange is None or not exchange.bindings:
            return
        headers = {name: value for name, value in facts.items() if value is not None}
        if not key.startswith(_WITHOUT_ACTOR):
            headers.setdefault(_ACTOR, self.actor.name)
        headers["timestamp_in_ms"] = self._broker.clock.wall_ms()
        try:
            publish_internal(self._broker, vhost, exchange, key, headers)
        except (TypeError, ValueError, BrokerError):
            texts = {name: _as_text(value) for name, value in headers.items()}
            publish_internal(self._broker, vhost, exchange, key, texts)

    # Clients -----------------------------------------------------------------------------------

    def login(self, facts: Mapping[str, Any], error: str | None) -> None:
        outcome = "success" if error is None else "failure"
        self.publish(f"user.authentication.{outcome}", {**facts, "error": error})

    def connection(self, connection: ConnectionEntry, change: str) -> None:
        with failures_logged(self._broker, f"event connection.{change}"):
            info = connection.info()
            facts = {name: getattr(info, name) for name in _CONNECTION_FACTS}
            self.publish(f"connection.{change}", {**facts, _ACTOR: connection.user.name})

    def channel(self, connection: ConnectionEntry, number: int, change: str) -> None:
        user = connection.user.name
        facts = {
            "name": f"{connection.name} ({number})",
            "number": number,
            "connection": connection.name,
            "user": user,
            _ACTOR: user,
            "vhost": connection.vhost.name,
        }
        self.publish(f"channel.{change}", facts)

    def consumer(self, facts: Mapping[str, Any], change: str) -> None:
        self.publish(f"consumer.{change}", facts)

    # Topology ----------------------------------------------------------------------------------

    def topology(self, vhost: VirtualHost, changed: Exchange | Queue, change: str) -> None:
        if not self.has_listeners:
            return
        spec = changed.spec
        facts = {
            "name": changed.name,
            "vhost": vhost.name,
            "durable": spec.durable,
            "auto_delete": spec.auto_delete,
            "arguments": dict(spec.arguments),
            "type": spec.kind,
        }
        if isinstance(changed, Exchange):
            facts |= {"internal": changed.spec.internal, "policy": self._policy_of(vhost, changed)}
        else:
            facts["exclusive"] = changed.spec.exclusive
        kind = "exchange" if isinstance(changed, Exchange) else "queue"
        self.publish(f"{kind}.{change}", facts)

    def _policy_of(self, vhost: VirtualHost, exchange: Exchange) -> str:
        return self._broker.policies.effective(vhost.name, exchange.name, EXCHANGE).policy or ""

    def binding(self, vhost: VirtualHost, binding: Binding, change: str) -> None:
        if not self.has_listeners:
            return
        facts = {
            "source_name": binding.source,
            "source_kind": "exchange",
            "destination_name": binding.destination.name,
            "destination_kind": str(binding.destination.kind),
            "routing_key": binding.routing_key,
            "arguments": dict(binding.arguments),
            "vhost": vhost.name,
        }
        self.publish(f"binding.{change}", facts)

    def vhost(self, name: str, change: str) -> None:
        vhost = self._broker.vhosts.get(name)
        facts = {"description": vhost.options.get("description", ""),
                 "tags": list(vhost.options.get("tags", ())),
                 "tracing": vhost.tracing} if vhost is not None else {}  # fmt: skip
        self.publish(f"vhost.{change}", {"name": name, **facts})

    # Policies, parameters, alarms --------------------------------------------------------------

    def policy(self, policy: Policy, is_set: bool) -> None:
        """An operator policy is also a parameter, and its removal has its own routing key."""
        key = {"vhost": policy.vhost, "name": policy.name}
        value = {
            "pattern": policy.pattern,
            "definition": dict(policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        if policy.operator:
            self._parameter({**key, "component": "operator_policy"}, value if is_set else None)
        if is_set:
            self.publish("policy.set", {**key, **value})
        else:
            self.publish("operator.policy.cleared" if policy.operator else "policy.cleared", key)

    def parameter(self, key: Key, value: Any) -> None:
        vhost, component, name = key
        if component == GLOBAL:
            self._parameter({"component": "global", "name": name}, value)
            return
        self._parameter({"vhost": vhost, "component": component, "name": name}, value)
        if component == VHOST_LIMITS:
            limits = value if isinstance(value, dict) else {}
            change = "cleared" if value is None else "set"
            self.publish(f"vhost.limits.{change}", {"vhost": vhost, "name": name, **limits})

    def _parameter(self, facts: Mapping[str, Any], value: Any) -> None:
        change = "cleared" if value is None else "set"
        self.publish(f"parameter.{change}", {**facts, "value": value})

    def alarm(self, event: str, facts: Mapping[str, Any]) -> None:
        """A failed store accepts no messages, so its alarm cannot be published."""
        if self._broker.store.state is not StoreState.FAILED:
            self.publish(event, {**facts, "node": self._broker.settings.node_name})
