"""The main objects of the API as documentation shows them. Answers may carry further fields."""

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


class ObjectTotals(BaseModel):
    connections: int
    channels: int
    queues: int
    exchanges: int
    consumers: int


class ChurnRates(Shape):
    connection_created: int
    connection_closed: int
    channel_created: int
    channel_closed: int
    queue_declared: int
    queue_created: int
    queue_deleted: int


class ListenerRow(Shape):
    node: str
    protocol: str
    ip_address: str
    port: int


class OverviewRow(Shape):
    cluster_name: str
    node: str
    product_name: str
    product_version: str
    rabbitmq_version: str
    management_version: str
    erlang_version: str
    erlang_full_version: str
    statistics_db_event_queue: int
    exchange_types: list[dict[str, Any]]
    message_stats: MessageStats
    churn_rates: ChurnRates
    queue_totals: QueueTotals
    object_totals: ObjectTotals
    listeners: list[ListenerRow]


class NodeRow(Shape):
    name: str
    running: bool
    uptime: int = Field(description="Milliseconds.")
    mem_used: int
    mem_limit: int
    mem_alarm: bool
    disk_free: int
    disk_free_limit: int
    disk_free_alarm: bool
    fd_used: int
    fd_total: int
    sockets_used: int
    proc_used: int
    alarms: list[dict[str, str]]


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
    policy: str | None
    message_bytes: int | None = None
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


class ConnectionRow(OctetRates):
    name: str
    vhost: str
    user: str
    state: str
    protocol: str
    channels: int
    peer_host: str
    peer_port: int
    connected_at: int
    client_properties: dict[str, Any]


class ChannelRow(Shape):
    name: str
    number: int
    vhost: str
    user: str
    state: str
    confirm: bool
    transactional: bool
    prefetch_count: int
    consumer_count: int
    messages_unacknowledged: int
    messages_unconfirmed: int
    message_stats: MessageStats | None = None


class ConsumerRow(Shape):
    consumer_tag: str
    ack_required: bool
    exclusive: bool
    prefetch_count: int
    active: bool
    arguments: dict[str, Any]
    queue: dict[str, str]
    channel_details: dict[str, Any]


# What lists answer with: an array, or a page of it.
Queues: Any = list[QueueRow] | Page[QueueRow]
Exchanges: Any = list[ExchangeRow] | Page[ExchangeRow]
Bindings: Any = list[BindingRow] | Page[BindingRow]
Connections: Any = list[ConnectionRow] | Page[ConnectionRow]
Channels: Any = list[ChannelRow] | Page[ChannelRow]
Consumers: Any = list[ConsumerRow] | Page[ConsumerRow]
