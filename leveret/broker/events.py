"""What happens in the broker, told through `amq.rabbitmq.event` in the default vhost.

Routing keys are RabbitMQ's (`queue.created`, `connection.closed`, `user.deleted`, …), facts are
headers, bodies are empty. While nothing is bound there an event costs one look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bindings import Binding
from exchange import Exchange
from leveret.broker.acting import Acting
from leveret.broker.inside import Mishaps, aside, send_inside
from leveret.broker.parameters import GLOBAL, VHOST_LIMITS, Key
from leveret.broker.policies import EXCHANGE, Policy
from leveret.broker.vhost import EVENT_EXCHANGE
from leveret.model.errors import BrokerError
from leveret.model.store import StoreState
from queues import HeldQueue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker, ConnectionEntry
    from leveret.broker.vhost import VirtualHost


_ACTOR = "user_who_performed_action"
_NOBODYS = ("user.authentication.", "alarm.")


def _as_text(value: Any) -> Any:
    """What JSON can say and AMQP's tables cannot: deep nesting, long names, large numbers."""
    is_small = isinstance(value, str) or (isinstance(value, int) and abs(value) < 1 << 63)
    return value if is_small else json.dumps(value, default=str)


class Events:
    def __init__(self, broker: Broker, vhost_name: str) -> None:
        self._broker = broker
        self._vhost_name = vhost_name
        self.acting = Acting()
        self.mishaps = Mishaps()

    def tell(self, key: str, facts: Mapping[str, Any]) -> None:
        """Never in the way of what it tells of: see `aside`."""
        with aside(self._broker, f"event {key}"):
            self._tell(key, facts)

    def _tell(self, key: str, facts: Mapping[str, Any]) -> None:
        vhost = self._broker.vhosts.get(self._vhost_name)
        exchange = vhost.exchanges.get(EVENT_EXCHANGE) if vhost is not None else None
        if vhost is None or exchange is None or not exchange.bindings:
            return
        known = {name: value for name, value in facts.items() if value is not None}
        if not key.startswith(_NOBODYS):
            known.setdefault(_ACTOR, self.acting.name)
        known["timestamp_in_ms"] = self._broker.clock.wall_ms()
        try:
            send_inside(self._broker, vhost, exchange, key, known)
        except (TypeError, ValueError, BrokerError):
            told = {name: _as_text(value) for name, value in known.items()}
            send_inside(self._broker, vhost, exchange, key, told)

    # Fronts ------------------------------------------------------------------------------------

    def login(self, facts: Mapping[str, Any], error: str | None) -> None:
        what = "success" if error is None else "failure"
        self.tell(f"user.authentication.{what}", {**facts, "error": error})

    def connection(self, connection: ConnectionEntry, what: str) -> None:
        with aside(self._broker, f"event connection.{what}"):
            by = {_ACTOR: connection.user.name}
            self.tell(f"connection.{what}", {**connection.describe(), **by})

    def channel(self, of: ConnectionEntry, number: int, what: str) -> None:
        facts = {"name": f"{of.name} ({number})", "number": number, "connection": of.name}
        by = {"user": of.user.name, _ACTOR: of.user.name}
        self.tell(f"channel.{what}", {**facts, **by, "vhost": of.vhost.name})

    def consumer(self, facts: Mapping[str, Any], what: str) -> None:
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
        if isinstance(made, Exchange):
            facts |= {"internal": made.spec.internal, "policy": self._policy_of(vhost, made)}
        else:
            facts["exclusive"] = made.spec.exclusive
        kind = "exchange" if isinstance(made, Exchange) else "queue"
        self.tell(f"{kind}.{what}", facts)

    def _policy_of(self, vhost: VirtualHost, exchange: Exchange) -> str:
        return self._broker.policies.effective(vhost.name, exchange.name, EXCHANGE).policy or ""

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
        vhost = self._broker.vhosts.get(name)
        facts = {"description": vhost.options.get("description", ""),
                 "tags": list(vhost.options.get("tags", ())),
                 "tracing": vhost.tracing} if vhost is not None else {}  # fmt: skip
        self.tell(f"vhost.{what}", {"name": name, **facts})

    # What governs ------------------------------------------------------------------------------

    def policy(self, policy: Policy, is_set: bool) -> None:
        """An operator policy is a parameter as well, and is cleared under a name of its own."""
        where = {"vhost": policy.vhost, "name": policy.name}
        value = {
            "pattern": policy.pattern,
            "definition": dict(policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        if policy.operator:
            self._parameter({**where, "component": "operator_policy"}, value if is_set else None)
        if is_set:
            self.tell("policy.set", {**where, **value})
        else:
            self.tell("operator.policy.cleared" if policy.operator else "policy.cleared", where)

    def parameter(self, key: Key, value: Any) -> None:
        vhost, component, name = key
        if component == GLOBAL:
            self._parameter({"component": "global", "name": name}, value)
            return
        self._parameter({"vhost": vhost, "component": component, "name": name}, value)
        if component == VHOST_LIMITS:
            limits = value if isinstance(value, dict) else {}
            what = "cleared" if value is None else "set"
            self.tell(f"vhost.limits.{what}", {"vhost": vhost, "name": name, **limits})

    def _parameter(self, facts: Mapping[str, Any], value: Any) -> None:
        what = "cleared" if value is None else "set"
        self.tell(f"parameter.{what}", {**facts, "value": value})

    def alarm(self, event: str, facts: Mapping[str, Any]) -> None:
        """Of a store that has failed nothing can be told: it takes no message any more."""
        if self._broker.store.state is not StoreState.FAILED:
            self.tell(event, {**facts, "node": self._broker.settings.node_name})
