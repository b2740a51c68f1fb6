"""The firehose: a copy of every message published to and delivered from a traced vhost.

Copies go to `amq.rabbitmq.trace` with the key `publish.<exchange>` or `deliver.<queue>`. The
vhost's option `tracing` switches it. While it is off there is nothing on the publish path, and one
look per batch of deliveries; while it is on no way is remembered, so every publish is worked out
anew. A log's deliveries are copied, too, one for each reader; offset and all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from exchange import Exchange
from leveret.broker.inside import aside, send_inside
from leveret.broker.vhost import TRACE_EXCHANGE, Plan
from leveret.model.message import Message
from leveret.model.properties import decode_properties
from queues import ClassicQueue, Entry, HeldQueue
from queues.port import Consumer
from queues.stream.front import LogFront

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

Who = Mapping[str, Any]
"""connection, channel and user, as the copy's headers name them"""


def switch(broker: Broker, vhost: VirtualHost) -> None:
    """Follow the vhost's options."""
    vhost.tracing = vhost.options.get("tracing") is True
    vhost.version += 1
    for queue in vhost.queues.values():
        watch(broker, vhost, queue)


def watch(broker: Broker, vhost: VirtualHost, made: Exchange | HeldQueue) -> None:
    """What is made in a traced vhost is traced, too."""
    if isinstance(made, ClassicQueue | LogFront):
        made.tap = (
            (lambda queue, entries, to: _delivered(broker, vhost, queue, entries, to))
            if vhost.tracing
            else None
        )


def published(broker: Broker, vhost: VirtualHost, plan: Plan, message: Message, who: Who) -> None:
    """A copy of a message whose way is known and that has not gone it yet."""
    with aside(broker, "a publish on the firehose"):
        routed = [queue.name for queue in plan.queues]
        headers = {**_facts(broker, vhost, message), **who, "routed_queues": routed}
        trace = vhost.exchanges[TRACE_EXCHANGE]
        send_inside(broker, vhost, trace, f"publish.{message.exchange}", headers, message.body)


def _delivered(
    broker: Broker,
    vhost: VirtualHost,
    queue: HeldQueue,
    entries: Sequence[Entry],
    consumer: Consumer | None,
) -> None:
    trace = vhost.exchanges.get(TRACE_EXCHANGE)
    if trace is None or not trace.bindings:
        return
    with aside(broker, "a delivery on the firehose"):
        row = consumer.describe()["channel_details"] if consumer is not None else {}
        who = {
            "connection": row.get("connection_name", ""),
            "channel": row.get("number", 0),
            "user": row.get("user", ""),
        }
        for entry in entries:
            _copy(broker, vhost, trace, queue, entry, who)


def _copy(
    broker: Broker, vhost: VirtualHost, trace: Exchange, queue: HeldQueue, entry: Entry, who: Who
) -> None:
    message = entry.message
    if message.exchange != TRACE_EXCHANGE:
        headers = {**_facts(broker, vhost, message), **who}
        headers["redelivered"] = int(entry.redelivered)
        send_inside(broker, vhost, trace, f"deliver.{queue.name}", headers, message.body)


def _facts(broker: Broker, vhost: VirtualHost, message: Message) -> dict[str, Any]:
    return {
        "exchange_name": message.exchange,
        "routing_keys": [message.routing_key],
        "properties": decode_properties(message.properties),
        "node": broker.settings.node_name,
        "vhost": vhost.name,
    }
