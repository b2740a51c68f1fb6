"""Queues."""

from __future__ import annotations

from typing import Any, NotRequired

from leveret.http_admin.schemas.clients import ConsumerRow
from leveret.http_admin.schemas.common import (
    DetailedRates,
    MessageStats,
    NamedRow,
    QueueTotals,
    listing,
)
from leveret.http_admin.schemas.fields import JsonTable


class QueueRow(NamedRow, QueueTotals):
    """`leader`, `members` and `online` are of quorum queues and streams; streams have no sizes,
    paging and ages."""

    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: JsonTable
    node: str
    state: str
    consumers: int
    consumer_utilisation: float
    consumer_capacity: float
    policy: str | None
    operator_policy: str | None
    effective_policy_definition: JsonTable
    exclusive_consumer_tag: str | None
    single_active_consumer_tag: str | None
    memory: int
    leader: NotRequired[str]
    members: NotRequired[list[str]]
    online: NotRequired[list[str]]
    message_bytes: NotRequired[int]
    message_bytes_ready: NotRequired[int]
    message_bytes_unacknowledged: NotRequired[int]
    message_bytes_ram: NotRequired[int]
    message_bytes_paged_out: NotRequired[int]
    messages_ram: NotRequired[int]
    messages_ready_ram: NotRequired[int]
    messages_unacknowledged_ram: NotRequired[int]
    messages_paged_out: NotRequired[int]
    head_message_timestamp: NotRequired[int | None]
    oldest_ready_age_ms: NotRequired[int | None]
    oldest_unacked_age_ms: NotRequired[int | None]
    message_stats: NotRequired[MessageStats]


class QueueDetails(QueueRow):
    """A queue requested by name: with its consumers, and what it has lost by damage."""

    consumer_details: list[ConsumerRow]
    lost_data: list[str]
    incoming: list[DetailedRates]
    deliveries: list[DetailedRates]


Queues: Any = listing(QueueRow)
