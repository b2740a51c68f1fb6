"""Connections, channels and consumers."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from leveret.http_admin.schemas.common import (
    ByteCounters,
    DetailedRates,
    MessageStats,
    NamedRow,
    listing,
)
from leveret.http_admin.schemas.fields import JsonTable


class ConnectionRow(NamedRow, ByteCounters):
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
    client_properties: JsonTable
    send_pend: int
    node: str


class ConnectionDetails(TypedDict):
    name: str
    peer_host: str
    peer_port: int
    user: str


class QueueName(TypedDict):
    name: str
    vhost: str


class ChannelReference(TypedDict):
    name: str
    number: int
    connection_name: str
    peer_host: str
    peer_port: int
    user: str
    node: str


class ConsumerRow(TypedDict):
    consumer_tag: str
    ack_required: bool
    exclusive: bool
    prefetch_count: int
    active: bool
    activity_status: Annotated[
        str, Field(description="up; of a single active consumer: single_active or waiting.")
    ]
    arguments: JsonTable
    unacknowledged: int
    delivered: int
    queue: QueueName
    channel_details: ChannelReference


class ChannelRow(TypedDict):
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
    message_stats: NotRequired[MessageStats]


class ChannelDetails(ChannelRow):
    """A channel requested by name: with its consumers."""

    consumer_details: list[ConsumerRow]
    publishes: list[DetailedRates]
    deliveries: list[DetailedRates]


Connections: Any = listing(ConnectionRow)
Channels: Any = listing(ChannelRow)
Consumers: Any = listing(ConsumerRow)
