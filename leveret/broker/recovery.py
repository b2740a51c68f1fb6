"""Recovers vhosts, users, exchanges, queues and bindings from the store when the broker starts.

In this order, because each depends on those before it. Called once, before anything else runs. A
definition that disk corruption has made unusable is logged and skipped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from leveret.bindings import Destination, DestinationKind
from leveret.broker.access.limits import apply_limits
from leveret.broker.events import firehose
from leveret.broker.logs.manager import recorded_ends
from leveret.broker.policies.parameters import CLOCK, IMPORT
from leveret.broker.publishing.delayed import KIND as DELAYED
from leveret.broker.vhost_deletion import DELETING
from leveret.exchange import ExchangeSpec
from leveret.model.arguments import load_arguments
from leveret.model.definitions import (
    BindingDefinition,
    Definition,
    ExchangeDefinition,
    ParameterDefinition,
    PermissionDefinition,
    PolicyDefinition,
    QueueDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.model.store import RecoveredState
from leveret.queues.spec import QueueSpec

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

log = logging.getLogger("leveret.broker")

CREATED_MS = "born_ms"
"""Stored among the options of a vhost, though it is not one."""

_DESTINATION_KINDS = {kind.value: kind for kind in DestinationKind}

T = TypeVar("T")
D = TypeVar("D", bound=Definition)


def recover(broker: Broker, recovered: RecoveredState) -> None:
    definitions = recovered.definitions
    for lost in recovered.lost:
        log.error("lost by damage of the database: %s", lost.text)
    broker.log_manager.cuts = recovered.log_cuts
    broker.log_manager.recorded_ends = recorded_ends(definitions)
    if not recovered.clean:
        broker.republished_redelivery.last_id_before_crash = recovered.last_message_id
    _each(_of(VhostDefinition, definitions), lambda row: _recover_vhost(broker, row))
    _each(_of(PolicyDefinition, definitions), broker.policies.recover)
    _each(_of(ParameterDefinition, definitions), lambda row: _recover_parameter(broker, row))
    _each(_of(UserDefinition, definitions), broker.users.recover)
    _each(_of(PermissionDefinition, definitions), broker.users.recover)
    _each(_of(TopicPermissionDefinition, definitions), broker.users.recover)
    _each(_of(ExchangeDefinition, definitions), lambda row: _recover_exchange(broker, row))
    _each(_of(QueueDefinition, definitions), lambda row: _recover_queue(broker, row, recovered))
    broker.log_manager.finish_recovery(definitions)
    _each(_of(BindingDefinition, definitions), lambda row: _recover_binding(broker, row))
    for name in broker.vhosts:
        apply_limits(broker, name)
    _finish_deletions(broker)
    broker.imports.finish_stored(_of(ParameterDefinition, definitions))


def _recover_vhost(broker: Broker, definition: VhostDefinition) -> None:
    options = json.loads(definition.options)
    created_ms = options.pop(CREATED_MS, 0)
    vhost = broker.make_vhost(definition.name)
    vhost.created_ms, vhost.options = created_ms, options
    firehose.apply_tracing(broker, vhost)


def _finish_deletions(broker: Broker) -> None:
    """Delete the virtual hosts whose deletion a stop or a crash interrupted."""
    for name in [name for name, vhost in broker.vhosts.items() if DELETING in vhost.options]:
        log.warning("finishing the deletion of vhost %r", name)
        broker.delete_vhost(name)


def _recover_parameter(broker: Broker, definition: ParameterDefinition) -> None:
    if definition.component in (CLOCK, IMPORT):
        return
    if not broker.plugin_exchanges.recover_key(definition):
        broker.parameters.recover(definition)


def _recover_exchange(broker: Broker, definition: ExchangeDefinition) -> None:
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


def _recover_queue(broker: Broker, definition: QueueDefinition, recovered: RecoveredState) -> None:
    vhost = broker.vhosts.get(definition.vhost)
    if vhost is None or not definition.durable:
        return
    live = recovered.live.get(definition.id, ())
    if definition.kind == DELAYED:
        broker.plugin_exchanges.delay_queues.recover(vhost, definition, live)
        return
    spec = QueueSpec(
        definition.name,
        True,
        False,
        definition.auto_delete,
        load_arguments(definition.arguments),
    )
    if spec.kind == "stream":
        broker.log_manager.recover_log(vhost, spec, definition)
        return
    queue = broker.topology.make_classic_queue(vhost, spec, definition)
    delivery_counts = recovered.delivery_counts.get(definition.id, {})
    queue.recover(live, recovered.last_message_id, delivery_counts)
    vhost.add_queue(queue)


def _recover_binding(broker: Broker, definition: BindingDefinition) -> None:
    vhost = broker.vhosts.get(definition.vhost)
    kind = _DESTINATION_KINDS[definition.destination_kind]
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


def _each(definitions: Iterable[D], recover_one: Callable[[D], None]) -> None:
    """Recover each definition; one that is damaged must not prevent the others."""
    for definition in definitions:
        try:
            recover_one(definition)
        except MemoryError:
            raise  # says nothing about the definition
        except Exception as error:  # noqa: BLE001 - whatever it is, the broker starts
            kind = type(definition).__name__
            log.error("damaged %s %r is skipped: %r", kind, _name_of(definition), error)


def _name_of(definition: Definition) -> str:
    """Only the name: a user's definition contains a password hash."""
    if isinstance(definition, BindingDefinition):
        return f"{definition.source} -> {definition.destination}"
    if isinstance(definition, PermissionDefinition | TopicPermissionDefinition):
        return definition.user
    return str(getattr(definition, "name", ""))
