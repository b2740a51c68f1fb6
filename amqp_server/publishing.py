"""The careful way to publish: taken when nothing is known yet, or when a message needs judging.

Steps: refuse what is not supported, check rights, judge user-id and expiration, rewrite the
direct reply-to, read CC and BCC, then ask the virtual host where it goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.codec import Publish
from leveret.broker import Action, Plan, firehose
from leveret.model.errors import NotImplementedHere, PreconditionFailed
from leveret.model.message import Message
from leveret.model.properties import DIRECT_REPLY_TO, edit_headers, replace
from leveret.model.tables import Table

if TYPE_CHECKING:
    from amqp_server.channel import Channel

LONGEST_TTL_MS = 315_360_000_000


def careful_plan(channel: Channel, publish: Publish, message: Message) -> tuple[Plan, Message]:
    address = publish.address
    if publish.immediate:
        raise NotImplementedHere("immediate=true")
    vhost = channel.vhost
    channel.require_write(address.exchange)
    exchange = vhost.exchange(address.exchange)
    scan = message.scan
    if scan.user_id is not None and scan.user_id != channel.session.user.name:
        raise PreconditionFailed(
            f"user_id property set to '{scan.user_id}' but authenticated user was "
            f"'{channel.session.user.name}'"
        )
    if scan.expiration is not None:
        _check_expiration(scan.expiration)
    if scan.reply_to == DIRECT_REPLY_TO:
        message = _with_reply_queue(channel, message)
    headers = message.headers()
    extra_keys = _copy_keys(headers, "CC") + _copy_keys(headers, "BCC")
    channel.demand_topic(Action.PUBLISH, exchange, (address.routing_key, *extra_keys))
    if "BCC" in headers:
        stripped = edit_headers(message.properties, frozenset({"BCC"}), {})
        message = message.with_properties(stripped)
    plan = vhost.plan(address, extra_keys, headers, channel.broker.users.revision)
    if vhost.tracing:
        session = channel.session
        who = {"connection": session.name, "channel": channel.number, "user": session.user.name}
        firehose.published(channel.broker, vhost, plan, message, who)
    return plan, message


def _check_expiration(text: str) -> None:
    if not text.isascii() or not text.isdigit() or int(text) > LONGEST_TTL_MS:
        raise PreconditionFailed(f"invalid expiration '{text}'")


def _with_reply_queue(channel: Channel, message: Message) -> Message:
    if channel.replies.queue is None:
        raise PreconditionFailed("fast reply consumer does not exist")
    return message.with_properties(
        replace(message.properties, "reply_to", channel.replies.queue.name)
    )


def _copy_keys(headers: Table, name: str) -> list[str]:
    keys = headers.get(name)
    if keys is None:
        return []
    if not isinstance(keys, list):
        raise PreconditionFailed(f"invalid {name} header: not an array")
    return [key for key in keys if isinstance(key, str)]
