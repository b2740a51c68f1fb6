"""A consumer on a channel: credit, and deliveries written straight into the connection's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amqp_server.codec import commands, deliver_prefix, encode_method, encode_tag
from amqp_server.describe import describe_consumer
from leveret.model.message import Address
from queues import Entry, HeldQueue

if TYPE_CHECKING:
    from amqp_server.channel import Channel

BATCH = 256


class AmqpConsumer:
    """`prefetch` 0 is no limit; the socket is the limit then."""

    __slots__ = (
        "_address", "_prefix", "_prefixes", "actor", "arguments", "channel", "delivered",
        "exclusive", "inflight", "no_ack", "prefetch", "priority", "queue", "tag",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        tag: str,
        queue: HeldQueue,
        no_ack: bool,
        exclusive: bool,
        arguments: dict[str, Any],
    ) -> None:
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        self.priority = int(arguments.get("x-priority", 0))
        self.prefetch = 0
        self.inflight = 0
        self.delivered = 0
        self.actor = 0
        self._address: object = None
        self._prefix = b""
        self._prefixes: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"<AmqpConsumer {self.tag!r} inflight={self.inflight}/{self.prefetch or '-'}>"

    @property
    def shares_credit(self) -> bool:
        return self.channel.global_prefetch > 0

    def credit(self) -> int:
        channel = self.channel
        if not channel.session.writable:
            return 0
        if self.no_ack:
            return BATCH
        credit = self.prefetch - self.inflight if self.prefetch else BATCH
        if channel.global_prefetch:
            credit = min(credit, channel.global_prefetch - len(channel.unacked))
        return min(credit, BATCH)

    def deliver(self, queue: HeldQueue, entries: Sequence[Entry]) -> None:
        channel = self.channel
        session = channel.session
        number, frame_max, out = channel.number, session.frame_max, session.out
        tag, size = channel.last_tag, 0
        unacked = None if self.no_ack else channel.unacked
        for entry in entries:
            message = entry.message
            address = message.address
            if address is not self._address:
                self._address = address
                self._prefix = self._prefixes.get(len(address.wire)) or self._learn(address)
            frames = message.frames
            if message.channel != number or len(frames) > frame_max:
                frames = message.content(number, frame_max)
            tag += 1
            out += (self._prefix, encode_tag(tag, entry.redelivered), address.wire, frames)
            size += len(frames) + 60
            if unacked is not None:
                unacked[tag] = (entry, queue, self)
        channel.last_tag = tag
        self.delivered += len(entries)
        channel.handed.delivered(entries, self.no_ack)
        if unacked is not None:
            self.inflight += len(entries)
        session.wrote(size)

    def _learn(self, address: Address) -> bytes:
        """A delivery's beginning depends on the length of its address alone."""
        made = deliver_prefix(self.channel.number, self.tag.encode(), address)
        self._prefixes[len(address.wire)] = made
        return made

    def describe(self) -> dict[str, Any]:
        return describe_consumer(self)

    def cancelled(self) -> None:
        """The queue has gone: forget the consumer and tell a client that wants to know."""
        self.channel.forget_consumer(self)
        if self.channel.session.wants_cancel_notify:
            cancel = commands.Basic.Cancel(self.tag, True)
            self.channel.notify(encode_method(self.channel.number, cancel))


Unacked = tuple[Entry, HeldQueue, AmqpConsumer | None]
"""What was handed out, of which queue, and to whom unless it was got."""


def by_queue(
    chosen: dict[int, Unacked],
) -> dict[tuple[HeldQueue, AmqpConsumer | None], list[Entry]]:
    groups: dict[tuple[HeldQueue, AmqpConsumer | None], list[Entry]] = {}
    for entry, queue, consumer in chosen.values():
        groups.setdefault((queue, consumer), []).append(entry)
    return groups
