"""The careful way to publish: taken when nothing is known yet, or when a message needs judging.

Steps: refuse what is not supported, check rights, judge user-id and expiration, rewrite the
direct reply-to, read CC and BCC, then ask the virtual host where it goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.codec import Publish
from leveret.broker import Action, Plan, firehose
from leveret.broker.judging import check_claims, copy_keys, without_blind_copies
from leveret.broker.names import require_open
from leveret.model.errors import NotImplementedHere, PreconditionFailed
from leveret.model.message import Message
from leveret.model.properties import DIRECT_REPLY_TO, replace

if TYPE_CHECKING:
    from amqp_server.channel import Channel


def careful_plan(channel: Channel, publish: Publish, message: Message) -> tuple[Plan, Message]:
    address = publish.address
    if publish.immediate:
        raise NotImplementedHere("immediate=true")
    vhost = channel.vhost
    channel.require_write(address.exchange)
    exchange = vhost.exchange(address.exchange)
    require_open(exchange, vhost.name)
    check_claims(message.scan, channel.session.user.name)
    if message.scan.reply_to == DIRECT_REPLY_TO:
        message = _with_reply_queue(channel, message)
    headers = message.headers()
    extra_keys = copy_keys(headers)
    channel.demand_topic(Action.PUBLISH, exchange, (address.routing_key, *extra_keys))
    message = without_blind_copies(message, headers)
    plan = vhost.plan(address, extra_keys, headers, channel.broker.users.revision)
    if vhost.tracing:
        session = channel.session
        who = {"connection": session.name, "channel": channel.number, "user": session.user.name}
        firehose.published(channel.broker, vhost, plan, message, who)
    return plan, message


def _with_reply_queue(channel: Channel, message: Message) -> Message:
    if channel.replies.queue is None:
        raise PreconditionFailed("fast reply consumer does not exist")
    return message.with_properties(
        replace(message.properties, "reply_to", channel.replies.queue.name)
    )
