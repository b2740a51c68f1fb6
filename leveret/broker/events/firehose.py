"""The firehose: a copy of every message published to and delivered from a traced vhost.

Copies go to `amq.rabbitmq.trace` with the key `publish.<exchange>` or `deliver.<queue>`. The option
`tracing` of a vhost turns it on. While it is off it costs nothing per publish and one check per
batch of deliveries; while it is on plans are not reused, so that every publish is seen. Deliveries
of a log are copied, too, one for each reader, with their offsets. Event-loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from leveret.broker.events.internal_publish import failures_logged, publish_internal
from leveret.broker.vhost import TRACE_EXCHANGE, Plan
from leveret.exchange import Exchange
from leveret.model.message import Message, decode_properties
from leveret.queues.entry import Entry
from leveret.queues.port import Consumer, Queue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

Client = Mapping[str, Any]
"""The headers `connection`, `channel` and `user` of a copy."""


def apply_tracing(broker: Broker, vhost: VirtualHost) -> None:
    """Turn tracing on or off as the vhost's options say."""
    vhost.tracing = vhost.options.get("tracing") is True
    vhost.version += 1
    for queue in vhost.queues.values():
        trace_if_enabled(broker, vhost, queue)


def trace_if_enabled(broker: Broker, vhost: VirtualHost, created: Exchange | Queue) -> None:
    if isinstance(created, Exchange):
        return
    if vhost.tracing:
        created.tap = lambda queue, entries, to: _on_delivered(broker, vhost, queue, entries, to)
    elif created.tap is not None:
        created.tap = None


def on_published(
    broker: Broker, vhost: VirtualHost, plan: Plan, message: Message, client: Client
) -> None:
    """Copy a message that has a plan but is not enqueued yet."""
    with failures_logged(broker, "a published message to the firehose"):
        routed = [queue.name for queue in plan.targets]
        headers = {**_facts(broker, vhost, message), **client, "routed_queues": routed}
        trace = vhost.exchanges[TRACE_EXCHANGE]
        publish_internal(
            broker, vhost, trace, f"publish.{message.exchange}", headers, message.body_in_pieces()
        )


def _on_delivered(
    broker: Broker,
    vhost: VirtualHost,
    queue: Queue,
    entries: Sequence[Entry],
    consumer: Consumer | None,
) -> None:
    trace = vhost.exchanges.get(TRACE_EXCHANGE)
    if trace is None or not trace.bindings:
        return
    with failures_logged(broker, "a delivery to the firehose"):
        info = consumer.info() if consumer is not None else None
        client = {
            "connection": info.connection_name if info is not None else "",
            "channel": info.channel_number if info is not None else 0,
            "user": info.user if info is not None else "",
        }
        for entry in entries:
            _copy(broker, vhost, trace, queue, entry, client)


def _copy(
    broker: Broker,
    vhost: VirtualHost,
    trace: Exchange,
    queue: Queue,
    entry: Entry,
    client: Client,
) -> None:
    message = entry.message
    if message.exchange != TRACE_EXCHANGE:
        headers = {**_facts(broker, vhost, message), **client}
        headers["redelivered"] = int(entry.redelivered)
        publish_internal(
            broker, vhost, trace, f"deliver.{queue.name}", headers, message.body_in_pieces()
        )


def _facts(broker: Broker, vhost: VirtualHost, message: Message) -> dict[str, Any]:
    return {
        "exchange_name": message.exchange,
        "routing_keys": [message.routing_key],
        "properties": decode_properties(message.properties),
        "node": broker.settings.node_name,
        "vhost": vhost.name,
    }
