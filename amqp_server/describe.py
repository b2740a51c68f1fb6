"""Connections, channels and consumers as rows of the management API. Read only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queues import ClassicQueue

if TYPE_CHECKING:
    from amqp_server.certificates import Secured
    from amqp_server.channel import Channel
    from amqp_server.consumer import AmqpConsumer
    from amqp_server.session import Session

Row = dict[str, Any]
_OF_TLS = (
    "ssl_protocol", "ssl_cipher", "peer_cert_subject", "peer_cert_issuer", "peer_cert_validity"
)  # fmt: skip


def describe_connection(session: Session) -> Row:
    peer, local = session.line.peer, session.line.local
    given = session.client_properties.get("connection_name")
    return {
        "name": session.name,
        "user_provided_name": given if isinstance(given, str) else None,
        "vhost": session.vhost.name,
        "user": session.user.name,
        "user_who_performed_action": session.user.name,
        "state": "blocked" if session.blocked else "running",
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": session.mechanism,
        "peer_host": peer[0],
        "peer_port": peer[1],
        "host": local[0],
        "port": local[1],
        **_describe_tls(session.line.secured),
        "channels": len(session.channels),
        "channel_max": session.channel_max,
        "frame_max": session.frame_max,
        "timeout": session.heartbeat,
        "connected_at": session.connected_ms,
        "client_properties": session.client_properties,
        "recv_oct": session.received,
        "send_oct": session.sent,
        "send_pend": session.out_size,
        "node": session.broker.settings.node_name,
    }


def _describe_tls(secured: Secured | None) -> Row:
    if secured is None:
        return {"ssl": False, **dict.fromkeys(_OF_TLS)}
    return {
        "ssl": True,
        "ssl_protocol": secured.protocol,
        "ssl_cipher": secured.cipher,
        "peer_cert_subject": secured.subject,
        "peer_cert_issuer": secured.issuer,
        "peer_cert_validity": secured.validity,
    }


def describe_channel(channel: Channel) -> Row:
    session = channel.session
    confirms = channel.confirms
    return {
        "name": f"{session.name} ({channel.number})",
        "number": channel.number,
        "vhost": session.vhost.name,
        "user": session.user.name,
        "user_who_performed_action": session.user.name,
        "node": session.broker.settings.node_name,
        "state": "running",
        "connection_details": _connection_details(session),
        "consumer_count": len(channel.consumers),
        "messages_unacknowledged": len(channel.unacked),
        "messages_unconfirmed": confirms.unconfirmed if confirms is not None else 0,
        "messages_uncommitted": 0,
        "acks_uncommitted": len(channel.transaction.held()) if channel.transaction else 0,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "confirm": confirms is not None,
        "transactional": channel.transaction is not None,
        "published": channel.published,
        "acknowledged": channel.acknowledged,
        "returned": channel.returned,
    }


def count_channel(channel: Channel) -> tuple[int, ...]:
    """What the channel has done, in the order of `leveret.broker.metrics.CHANNEL_FIELDS`."""
    handed, confirms = channel.handed, channel.confirms
    return (
        channel.published,
        confirms.settled if confirms is not None else 0,
        channel.returned,
        channel.dropped,
        handed.delivered_ack,
        handed.delivered_no_ack,
        handed.got_ack,
        handed.got_no_ack,
        handed.redelivered,
        channel.acknowledged,
    )


def _connection_details(session: Session) -> Row:
    return {
        "name": session.name,
        "peer_host": session.line.peer[0],
        "peer_port": session.line.peer[1],
        "user": session.user.name,
    }


def _activity(consumer: AmqpConsumer) -> Row:
    queue = consumer.queue
    active = queue.active_consumer if isinstance(queue, ClassicQueue) else None
    if active is None:
        return {"active": True, "activity_status": "up"}
    is_active = active is consumer
    return {"active": is_active, "activity_status": "single_active" if is_active else "waiting"}


def describe_consumer(consumer: AmqpConsumer) -> Row:
    channel = consumer.channel
    session = channel.session
    return {
        "consumer_tag": consumer.tag,
        "ack_required": not consumer.no_ack,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        **_activity(consumer),
        "arguments": dict(consumer.arguments),
        "unacknowledged": consumer.inflight,
        "delivered": consumer.delivered,
        "queue": {"name": consumer.queue.name, "vhost": session.vhost.name},
        "channel_details": {
            "name": f"{session.name} ({channel.number})",
            "number": channel.number,
            "connection_name": session.name,
            "peer_host": session.line.peer[0],
            "peer_port": session.line.peer[1],
            "user": session.user.name,
            "node": session.broker.settings.node_name,
        },
    }


def consumer_facts(channel: Channel, consumer: AmqpConsumer) -> Row:
    """As events name it."""
    return {
        "consumer_tag": consumer.tag,
        "queue": consumer.queue.name,
        "channel": f"{channel.session.name} ({channel.number})",
        "vhost": channel.vhost.name,
    }
