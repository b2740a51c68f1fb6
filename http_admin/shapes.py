"""Queues, exchanges and bindings as the documentation shows them, and what all rows share.

Tests hold every answer against these: a field that is sent is a field that is described.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

R = TypeVar("R")


class Shape(BaseModel):
    model_config = ConfigDict(extra="allow")


class Page(BaseModel, Generic[R]):
    """What a list answers to a query with `page`."""

    items: list[R]
    page: int
    page_count: int
    page_size: int
    item_count: int
    filtered_count: int
    total_count: int


class Sample(BaseModel):
    timestamp: int = Field(description="Unix time in milliseconds.")
    sample: float


class Details(Shape):
    """A rate per second now and, when the query asked for them, samples (newest first)."""

    rate: float
    samples: list[Sample] | None = None
    avg: float | None = None
    avg_rate: float | None = None


class MessageStats(Shape):
    """Counters since the start; only what has happened appears."""

    publish: int | None = None
    publish_details: Details | None = None
    confirm: int | None = None
    confirm_details: Details | None = None
    deliver: int | None = None
    deliver_details: Details | None = None
    deliver_no_ack: int | None = None
    deliver_no_ack_details: Details | None = None
    get: int | None = None
    get_details: Details | None = None
    get_no_ack: int | None = None
    get_no_ack_details: Details | None = None
    deliver_get: int | None = None
    deliver_get_details: Details | None = None
    redeliver: int | None = None
    redeliver_details: Details | None = None
    ack: int | None = None
    ack_details: Details | None = None
    return_unroutable: int | None = None
    return_unroutable_details: Details | None = None
    drop_unroutable: int | None = None
    drop_unroutable_details: Details | None = None
    get_empty: int | None = None
    get_empty_details: Details | None = None
    publish_in: int | None = None
    publish_in_details: Details | None = None
    publish_out: int | None = None
    publish_out_details: Details | None = None


class QueueTotals(Shape):
    messages: int
    messages_details: Details
    messages_ready: int
    messages_ready_details: Details
    messages_unacknowledged: int
    messages_unacknowledged_details: Details


class OctetRates(Shape):
    recv_oct: int = Field(description="Octets received from clients.")
    recv_oct_details: Details
    send_oct: int = Field(description="Octets sent to clients.")
    send_oct_details: Details


class MessageProperties(BaseModel):
    """Of a message, by AMQP's names; only what was set appears."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = Field(default=None, description="Unix time in seconds.")
    message_type: str | None = Field(default=None, alias="type")
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class QueueRow(QueueTotals):
    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: dict[str, Any]
    node: str
    state: str
    consumers: int
    consumer_utilisation: float
    consumer_capacity: float
    policy: str | None
    operator_policy: str | None
    effective_policy_definition: dict[str, Any]
    exclusive_consumer_tag: str | None
    single_active_consumer_tag: str | None
    leader: str | None = None
    members: list[str] | None = None
    online: list[str] | None = None
    memory: int
    message_bytes: int | None = None
    message_bytes_ready: int | None = None
    message_bytes_unacknowledged: int | None = None
    message_bytes_ram: int | None = None
    message_bytes_paged_out: int | None = None
    messages_ram: int | None = None
    messages_ready_ram: int | None = None
    messages_unacknowledged_ram: int | None = None
    messages_paged_out: int | None = None
    head_message_timestamp: int | None = None
    oldest_ready_age_ms: int | None = None
    oldest_unacked_age_ms: int | None = None
    message_stats: MessageStats | None = None


class ExchangeRow(Shape):
    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]
    policy: str | None
    user_who_performed_action: str
    message_stats: MessageStats | None = None
    messages_delayed: int | None = None


class BindingRow(BaseModel):
    source: str
    vhost: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: dict[str, Any]
    properties_key: str


def listing(row: Any) -> Any:
    """What a list answers with: an array, or a page of it."""
    return list[row] | Page[row]


Queues: Any = listing(QueueRow)
Exchanges: Any = listing(ExchangeRow)
Bindings: Any = listing(BindingRow)
