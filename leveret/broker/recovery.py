"""What the store held when the broker started, made into vhosts, exchanges, queues and bindings.

In this order, because each needs what stands before it. Called once, before anything else runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from bindings import Destination, DestinationKind
from exchange import ExchangeSpec
from leveret.broker import firehose, governing
from leveret.broker.delays import KIND as DELAYS
from leveret.broker.parameters import CLOCK
from leveret.model.arguments import load_arguments
from leveret.model.store import (
    BindingDefinition,
    Definition,
    ExchangeDefinition,
    ParameterDefinition,
    PermissionDefinition,
    PolicyDefinition,
    QueueDefinition,
    Recovered,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from queues import ClassicQueue, QueueSpec

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

log = logging.getLogger("leveret.broker")

BORN_MS = "born_ms"
"""Stands among the stored options of a vhost, and is none."""

T = TypeVar("T")
D = TypeVar("D", bound=Definition)


def take_up(broker: Broker, recovered: Recovered) -> None:
    """Everything the store gave back; what rot has made unusable is left out."""
    kinds = recovered.definitions
    broker.log_keeper.ends = recovered.log_ends
    broker.dead_letters.aftermath.upto = 0 if recovered.clean else recovered.last_message_id
    _each(_of(VhostDefinition, kinds), lambda one: _take_up_vhost(broker, one))
    _each(_of(PolicyDefinition, kinds), broker.policies.recover)
    _each(_of(ParameterDefinition, kinds), lambda one: _take_up_parameter(broker, one))
    _each(_of(UserDefinition, kinds), broker.users.recover)
    _each(_of(PermissionDefinition, kinds), broker.users.recover)
    _each(_of(TopicPermissionDefinition, kinds), broker.users.recover)
    _each(_of(ExchangeDefinition, kinds), lambda one: _take_up_exchange(broker, one))
    _each(_of(QueueDefinition, kinds), lambda one: _take_up_queue(broker, one, recovered))
    broker.log_keeper.taken_up(kinds)
    _each(_of(BindingDefinition, kinds), lambda one: _take_up_binding(broker, one))
    for name in broker.vhosts:
        governing.apply_limits(broker, name)


def _take_up_vhost(broker: Broker, definition: VhostDefinition) -> None:
    options = json.loads(definition.options)
    born_ms = options.pop(BORN_MS, 0)
    vhost = broker.make_vhost(definition.name)
    vhost.born_ms, vhost.options = born_ms, options
    firehose.switch(broker, vhost)


def _take_up_parameter(broker: Broker, definition: ParameterDefinition) -> None:
    if definition.component == CLOCK:
        return
    if not broker.stations.recover_key(definition):
        broker.parameters.recover(definition)


def _take_up_exchange(broker: Broker, definition: ExchangeDefinition) -> None:
    vhost = broker.vhosts.get(definition.vhost)
    if vhost is not None:
        vhost.declare_exchange(
            ExchangeSpec(
                definition.name,
                definition.kind,
                True,
                definition.auto_delete,
                definition.internal,
                load_arguments(definition.arguments),
            ),
            is_stored=True,
        )


def _take_up_queue(broker: Broker, definition: QueueDefinition, recovered: Recovered) -> None:
    if definition.id in recovered.damaged:
        log.error("queue %r: %s", definition.name, recovered.damaged[definition.id])
    vhost = broker.vhosts.get(definition.vhost)
    if vhost is None or not definition.durable:
        return
    if definition.kind == DELAYS:
        parts = recovered.live.get(definition.id, ())
        broker.stations.delays.recover(vhost, definition, parts)
        return
    spec = QueueSpec(
        definition.name,
        True,
        False,
        definition.auto_delete,
        load_arguments(definition.arguments),
    )
    if spec.kind == "stream":
        broker.log_keeper.take_up(vhost, spec, definition)
        return
    queue = broker.make_queue(vhost, spec, definition)
    if isinstance(queue, ClassicQueue) and queue.paging is not None:
        live = recovered.live.get(definition.id, ())
        attempts = recovered.attempts.get(definition.id, {})
        queue.paging.recover(live, recovered.last_message_id, attempts)
    vhost.adopt_queue(queue)


def _take_up_binding(broker: Broker, definition: BindingDefinition) -> None:
    vhost = broker.vhosts.get(definition.vhost)
    kind = DestinationKind(definition.destination_kind)
    if vhost is None or definition.source not in vhost.exchanges:
        return
    vhost.bind(
        definition.source,
        Destination(kind, definition.destination),
        definition.routing_key,
        load_arguments(definition.arguments),
        is_stored=True,
    )


def _of(kind: type[T], definitions: Iterable[Definition]) -> list[T]:
    return [definition for definition in definitions if isinstance(definition, kind)]


def _each(definitions: Iterable[D], take_up: Callable[[D], None]) -> None:
    """A definition that rot has made unusable is left out, and must not keep others from use."""
    for definition in definitions:
        try:
            take_up(definition)
        except MemoryError:
            raise  # says nothing about the definition
        except Exception as error:  # noqa: BLE001 - whatever it is, the broker starts
            what = type(definition).__name__
            log.error("a damaged %s %r is left out: %r", what, _name_of(definition), error)


def _name_of(definition: Definition) -> str:
    """No secrets: a user's definition has a password's hash."""
    if isinstance(definition, BindingDefinition):
        return f"{definition.source} -> {definition.destination}"
    if isinstance(definition, PermissionDefinition | TopicPermissionDefinition):
        return definition.user
    return str(getattr(definition, "name", ""))
