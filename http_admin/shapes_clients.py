"""Connections, channels and consumers as the documentation shows them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from http_admin.shapes import ExchangeRow, MessageStats, OctetRates, QueueRow, Shape, listing


class ConnectionRow(OctetRates):
    name: str
    user_provided_name: str | None
    vhost: str
    user: str
    user_who_performed_action: str
    state: str
    type: str
    protocol: str
    auth_mechanism: str
    channels: int
    channel_max: int
    frame_max: int
    timeout: int
    peer_host: str
    peer_port: int
    host: str
    port: int
    ssl: bool
    ssl_protocol: str | None
    ssl_cipher: str | None
    peer_cert_subject: str | None
    peer_cert_issuer: str | None
    peer_cert_validity: str | None
    connected_at: int
    client_properties: dict[str, Any]
    send_pend: int
    node: str


class ConnectionDetails(Shape):
    name: str
    peer_host: str
    peer_port: int
    user: str


class QueueName(Shape):
    name: str
    vhost: str


class ChannelDetails(Shape):
    name: str
    number: int
    connection_name: str
    peer_host: str
    peer_port: int
    user: str
    node: str


class ConsumerRow(Shape):
    consumer_tag: str
    ack_required: bool
    exclusive: bool
    prefetch_count: int
    active: bool
    activity_status: str = Field(description="up, or single_active or waiting for its turn.")
    arguments: dict[str, Any]
    unacknowledged: int
    delivered: int
    queue: QueueName
    channel_details: ChannelDetails


class ChannelRow(Shape):
    name: str
    number: int
    vhost: str
    user: str
    user_who_performed_action: str
    node: str
    state: str
    connection_details: ConnectionDetails
    confirm: bool
    transactional: bool
    prefetch_count: int
    global_prefetch_count: int
    consumer_count: int
    messages_unacknowledged: int
    messages_unconfirmed: int
    messages_uncommitted: int
    acks_uncommitted: int
    published: int
    acknowledged: int
    returned: int
    message_stats: MessageStats | None = None


class Measured(Shape):
    """Rates of a pair, which RabbitMQ measures in its detailed mode: there are none here."""


class ChannelPage(ChannelRow):
    """A channel by its name: with its consumers."""

    consumer_details: list[ConsumerRow]
    publishes: list[Measured]
    deliveries: list[Measured]


class ExchangePage(ExchangeRow):
    """An exchange by its name."""

    incoming: list[Measured]
    outgoing: list[Measured]


class QueuePage(QueueRow):
    """A queue by its name: with its consumers."""

    consumer_details: list[ConsumerRow]
    incoming: list[Measured]
    deliveries: list[Measured]


Connections: Any = listing(ConnectionRow)
Channels: Any = listing(ChannelRow)
Consumers: Any = listing(ConsumerRow)
