"""Exchanges and bindings."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

from leveret.http_admin.schemas.common import DetailedRates, MessageStats, listing
from leveret.http_admin.schemas.fields import JsonTable


class ExchangeRow(TypedDict):
    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: JsonTable
    policy: str | None
    user_who_performed_action: str
    message_stats: NotRequired[MessageStats]
    messages_delayed: NotRequired[int]


class ExchangeDetails(ExchangeRow):
    """An exchange requested by name."""

    incoming: list[DetailedRates]
    outgoing: list[DetailedRates]


class BindingRow(TypedDict):
    source: str
    vhost: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: JsonTable
    properties_key: str


Exchanges: Any = listing(ExchangeRow)
Bindings: Any = listing(BindingRow)
