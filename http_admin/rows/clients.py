"""Rows of connections, channels and consumers."""

from __future__ import annotations

from leveret.broker import Broker, ChannelEntry, ConnectionEntry
from leveret.broker.metrics import CHANNEL_FIELDS
from leveret.http_admin.rows.stats import byte_rates, message_stats
from leveret.http_admin.samples import SampleRange
from leveret.http_admin.schemas.clients import ChannelRow, ConnectionRow, ConsumerRow
from leveret.queues.port import Consumer


def connection_row(
    broker: Broker, connection: ConnectionEntry, samples: SampleRange | None = None
) -> ConnectionRow:
    series = broker.metrics.connections.get(connection)
    info = connection.info()
    return {
        "name": info.name,
        "user_provided_name": info.user_provided_name,
        "vhost": info.vhost,
        "user": info.user,
        "user_who_performed_action": info.user,
        "state": info.state,
        "type": info.type,
        "protocol": info.protocol,
        "auth_mechanism": info.auth_mechanism,
        "peer_host": info.peer_host,
        "peer_port": info.peer_port,
        "host": info.host,
        "port": info.port,
        "ssl": info.ssl,
        "ssl_protocol": info.ssl_protocol,
        "ssl_cipher": info.ssl_cipher,
        "peer_cert_subject": info.peer_cert_subject,
        "peer_cert_issuer": info.peer_cert_issuer,
        "peer_cert_validity": info.peer_cert_validity,
        "channels": info.channels,
        "channel_max": info.channel_max,
        "frame_max": info.frame_max,
        "timeout": info.timeout,
        "connected_at": info.connected_at,
        "client_properties": dict(info.client_properties),
        "recv_oct": info.recv_oct,
        "send_oct": info.send_oct,
        "send_pend": info.send_pend,
        "node": info.node,
        **byte_rates(series, samples),
    }


def channel_row(
    broker: Broker, channel: ChannelEntry, samples: SampleRange | None = None
) -> ChannelRow:
    info = channel.info()
    row: ChannelRow = {
        "name": info.name,
        "number": info.number,
        "vhost": info.vhost,
        "user": info.user,
        "user_who_performed_action": info.user,
        "node": info.node,
        "state": "running",
        "connection_details": {
            "name": info.connection_name,
            "peer_host": info.peer_host,
            "peer_port": info.peer_port,
            "user": info.user,
        },
        "consumer_count": info.consumer_count,
        "messages_unacknowledged": info.messages_unacknowledged,
        "messages_unconfirmed": info.messages_unconfirmed,
        "messages_uncommitted": 0,
        "acks_uncommitted": info.acks_uncommitted,
        "prefetch_count": info.prefetch_count,
        "global_prefetch_count": info.global_prefetch_count,
        "confirm": info.confirm,
        "transactional": info.transactional,
        "published": info.published,
        "acknowledged": info.acknowledged,
        "returned": info.returned,
    }
    series = broker.metrics.channels.get(channel)
    stats = message_stats(CHANNEL_FIELDS, channel.counts(), series, samples)
    if stats:
        row["message_stats"] = stats
    return row


def consumer_row(consumer: Consumer) -> ConsumerRow:
    info = consumer.info()
    return {
        "consumer_tag": info.consumer_tag,
        "ack_required": info.ack_required,
        "exclusive": info.exclusive,
        "prefetch_count": info.prefetch_count,
        "active": info.active,
        "activity_status": info.activity_status,
        "arguments": dict(info.arguments),
        "unacknowledged": info.unacknowledged,
        "delivered": info.delivered,
        "queue": {"name": info.queue, "vhost": info.vhost},
        "channel_details": {
            "name": info.channel_name,
            "number": info.channel_number,
            "connection_name": info.connection_name,
            "peer_host": info.peer_host,
            "peer_port": info.peer_port,
            "user": info.user,
            "node": info.node,
        },
    }
