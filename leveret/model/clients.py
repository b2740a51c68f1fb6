"""Connections, channels and consumers as management and events see them: read-only snapshots.

Fields have the names that RabbitMQ's management API uses, so that a snapshot can be listed as it
is. The JSON rows of the API are built from these in `leveret/http_admin/rows/clients.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionInfo:
    name: str
    user_provided_name: str | None
    vhost: str
    user: str
    state: str
    auth_mechanism: str
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
    channels: int
    channel_max: int
    frame_max: int
    timeout: int
    connected_at: int
    client_properties: Mapping[str, Any]
    recv_oct: int
    send_oct: int
    send_pend: int
    node: str
    type: str = "network"
    protocol: str = "AMQP 0-9-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelInfo:
    name: str
    number: int
    vhost: str
    user: str
    node: str
    connection_name: str
    peer_host: str
    peer_port: int
    consumer_count: int
    messages_unacknowledged: int
    messages_unconfirmed: int
    acks_uncommitted: int
    prefetch_count: int
    global_prefetch_count: int
    confirm: bool
    transactional: bool
    published: int
    acknowledged: int
    returned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    consumer_tag: str
    ack_required: bool
    exclusive: bool
    prefetch_count: int
    active: bool
    activity_status: str
    arguments: Mapping[str, Any]
    unacknowledged: int
    delivered: int
    queue: str
    vhost: str
    channel_name: str
    channel_number: int
    connection_name: str
    peer_host: str
    peer_port: int
    user: str
    node: str
