"""Rows of exchanges and bindings."""

from __future__ import annotations

from urllib.parse import quote_plus

from leveret.bindings import Binding
from leveret.broker import Broker, VirtualHost
from leveret.broker.metrics import EXCHANGE_FIELDS
from leveret.exchange import DELAYED, Exchange
from leveret.http_admin.rows.stats import message_stats
from leveret.http_admin.samples import SampleRange
from leveret.http_admin.schemas.exchanges import BindingRow, ExchangeRow

VhostBinding = tuple[VirtualHost, str | Binding]
"""A binding, or the name of a queue for its binding to the default exchange."""


def exchange_row(
    broker: Broker, vhost: VirtualHost, exchange: Exchange, samples: SampleRange | None = None
) -> ExchangeRow:
    spec = exchange.spec
    row: ExchangeRow = {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": spec.kind,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "internal": spec.internal,
        "arguments": dict(spec.arguments),
        "policy": broker.policies.effective(vhost.name, exchange.name, "exchange").policy,
        "user_who_performed_action": "rmq-internal" if exchange.name.startswith("amq.") else "",
    }
    if spec.kind == DELAYED:
        delayed = broker.plugin_exchanges.delay_queues.by_exchange.get(exchange)
        row["messages_delayed"] = len(delayed) if delayed is not None else 0
    values = (exchange.published_in, exchange.published_out)
    series = broker.metrics.exchanges.get(exchange)
    stats = message_stats(EXCHANGE_FIELDS, values, series, samples)
    if stats:
        row["message_stats"] = stats
    return row


def binding_row(vhost: VirtualHost, binding: Binding) -> BindingRow:
    return {
        "source": binding.source,
        "vhost": vhost.name,
        "destination": binding.destination.name,
        "destination_type": binding.destination.kind.value,
        "routing_key": binding.routing_key,
        "arguments": dict(binding.arguments),
        "properties_key": binding.properties_key,
    }


def default_binding_row(vhost: VirtualHost, queue_name: str) -> BindingRow:
    """The binding of a queue to the default exchange, which every queue has."""
    return {
        "source": "",
        "vhost": vhost.name,
        "destination": queue_name,
        "destination_type": "queue",
        "routing_key": queue_name,
        "arguments": {},
        "properties_key": quote_plus(queue_name, safe="").replace("~", "%7E"),
    }


def any_binding_row(item: VhostBinding) -> BindingRow:
    vhost, binding = item
    if isinstance(binding, str):
        return default_binding_row(vhost, binding)
    return binding_row(vhost, binding)
