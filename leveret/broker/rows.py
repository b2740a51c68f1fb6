"""Exchanges, queues and bindings of a virtual host as the store keeps them."""

from __future__ import annotations

from bindings import Binding
from exchange import ExchangeSpec
from leveret.model.arguments import dump_arguments
from leveret.model.store import BindingDefinition, ExchangeDefinition, QueueDefinition
from queues import QueueSpec


def exchange_row(vhost: str, spec: ExchangeSpec) -> ExchangeDefinition:
    return ExchangeDefinition(
        vhost,
        spec.name,
        spec.kind,
        spec.auto_delete,
        spec.internal,
        dump_arguments(spec.arguments),
    )


def queue_row(vhost: str, number: int, spec: QueueSpec) -> QueueDefinition:
    return QueueDefinition(
        id=number,
        vhost=vhost,
        name=spec.name,
        kind=spec.kind,
        durable=spec.durable and not spec.exclusive,
        auto_delete=spec.auto_delete,
        exclusive=spec.exclusive,
        arguments=dump_arguments(spec.arguments),
    )


def binding_row(vhost: str, binding: Binding) -> BindingDefinition:
    return BindingDefinition(
        vhost,
        binding.source,
        binding.destination.name,
        binding.destination.kind.value,
        binding.routing_key,
        dump_arguments(binding.arguments),
    )
