"""How a channel's consumers come and go, what they may hold, and polling.

Plain functions over the channel's state; deliveries themselves are written by `consumer.py`.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp_server.codec import Method, commands, encode_get_ok, encode_method
from amqp_server.consumer import AmqpConsumer
from amqp_server.describe import consumer_facts
from amqp_server.patience import CONSUMER_TIMEOUT, check_timeout
from leveret.broker import Action
from leveret.model.errors import AccessRefused, NotAllowed, NotImplementedHere, PreconditionFailed
from leveret.model.history import OriginKind
from leveret.model.properties import DIRECT_REPLY_TO
from leveret.model.store import StoreState
from queues import ClassicQueue, HeldQueue

if TYPE_CHECKING:
    from amqp_server.channel import Channel


def consume(channel: Channel, method: Any) -> None:
    tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
    if tag in channel.consumers or channel.replies.has_consumer(tag):
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    if method.queue == DIRECT_REPLY_TO:
        channel.replies.start(tag, method.no_ack)
    else:
        queue = channel.declarations.queue_for(Action.CONSUME, method.queue)
        _start_consumer(channel, tag, queue, method)
    if not method.nowait:
        channel.session.send(encode_method(channel.number, commands.Basic.ConsumeOk(tag)))


def _start_consumer(channel: Channel, tag: str, queue: HeldQueue, method: Any) -> None:
    arguments = dict(method.arguments or {})
    priority = arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise PreconditionFailed(f"invalid arg 'x-priority': {priority!r} is not an integer")
    check_timeout(arguments.get(CONSUMER_TIMEOUT, 0))
    consumer = AmqpConsumer(channel, tag, queue, method.no_ack, method.exclusive, arguments)
    consumer.prefetch = channel.prefetch
    if queue.spec.durable:
        consumer.actor = channel.save_origin(OriginKind.CONSUMER, tag)
    try:
        queue.add_consumer(consumer)
    except AccessRefused as error:
        where = f"queue '{queue.name}' in vhost '{channel.vhost.name}'"
        raise AccessRefused(f"{where} {error.explanation}") from error
    channel.consumers[tag] = consumer
    with channel.acting():
        facts = {
            "ack_required": not method.no_ack,
            "exclusive": method.exclusive,
            "prefetch_count": channel.prefetch,
            "arguments": arguments,
        }
        channel.broker.events.consumer({**consumer_facts(channel, consumer), **facts}, "created")


def cancel(channel: Channel, method: Any) -> None:
    consumer = channel.consumers.get(method.consumer_tag)
    if consumer is not None:
        with channel.acting():
            channel.forget_consumer(consumer)
            channel.vhost.leave_queue(consumer.queue, consumer)
    elif channel.replies.has_consumer(method.consumer_tag):
        channel.replies.end()
    if not method.nowait:
        channel.reply(commands.Basic.CancelOk(method.consumer_tag))


def qos(channel: Channel, method: Any) -> None:
    if method.prefetch_size:
        raise NotImplementedHere(f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.global_prefetch = method.prefetch_count
    else:
        # As in RabbitMQ the limit of the channel is lifted. Unlike there, running consumers
        # get the new limit, too: kombu relies on it.
        channel.prefetch, channel.global_prefetch = method.prefetch_count, 0
        for consumer in channel.consumers.values():
            consumer.prefetch = method.prefetch_count
    channel.reply(commands.Basic.QosOk())
    for consumer in channel.consumers.values():
        channel.broker.turn.touch(consumer.queue)


def get(channel: Channel, method: Any) -> None:
    """Who has to wait for the answer asks anew, since rights and queues go."""
    queue = channel.declarations.queue_for(Action.GET, method.queue)
    session, no_ack = channel.session, method.no_ack
    if session.is_choked:  # a request takes few octets, its answer may take many
        channel.inbox = deque() if channel.inbox is None else channel.inbox
        session.putting_off.until_read.append(partial(_get_again, channel, method))
        return
    entry = queue.take(channel.origin() if queue.spec.durable else 0, no_ack)
    if entry is not None:
        channel.last_tag += 1
        channel.handed.got(entry, no_ack)
        if not no_ack:
            channel.unacked[channel.last_tag] = (entry, queue, None)
        address = entry.message.address
        head = encode_get_ok(
            channel.number, channel.last_tag, entry.redelivered, address, queue.ready_count
        )
        content = entry.message.content(channel.number, session.frame_max)
        session.send(head + content)
        channel.broker.turn.schedule()
    elif queue.ready_count and not (isinstance(queue, ClassicQueue) and queue.is_held_back):
        # There is something, but the disk has to bring it, or to say that it may be handed out.
        if channel.broker.store.state is StoreState.FAILED:
            channel.give_up()
        channel.inbox = deque() if channel.inbox is None else channel.inbox
        queue.when_head(partial(_get_again, channel, method))
        channel.broker.turn.schedule()
    else:
        channel.broker.counters.get_empty += 1
        channel.vhost.counters.get_empty += 1
        session.send(encode_method(channel.number, commands.Basic.GetEmpty()))


def _get_again(channel: Channel, method: Any) -> None:
    channel.go_on(lambda: get(channel, method))


HANDLERS: dict[type[Method], Callable[[Channel, Any], None]] = {
    commands.Basic.Consume: consume,
    commands.Basic.Cancel: cancel,
    commands.Basic.CancelOk: lambda channel, method: None,
    commands.Basic.Qos: qos,
    commands.Basic.Get: get,
}
