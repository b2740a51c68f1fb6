"""A consumer on a channel: its credit, and deliveries written directly to the connection's output.

Event-loop thread only. After a crash its unacknowledged deliveries are ready again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from leveret.amqp_server.codec import commands, deliver_prefix, encode_method, encode_tag
from leveret.model.clients import ConsumerInfo
from leveret.model.message import Address, LargeContent
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Entry, RunPart
from leveret.queues.port import Consumer, Queue

if TYPE_CHECKING:
    from leveret.amqp_server.channel import Channel

DELIVER_BYTES = 60
"""Counted for the method frame of a delivery."""
MAX_BATCH = 256
"""Deliveries per call; also the credit of a consumer without prefetch limit."""


class AmqpConsumer:
    """`prefetch` 0 means no limit; only the socket limits deliveries then."""

    __slots__ = (
        "_address", "_prefix", "_prefixes", "actor", "arguments", "channel", "delivered",
        "exclusive", "inflight", "no_ack", "prefetch", "priority", "queue", "tag",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel,
        tag: str,
        queue: Queue,
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

    def info(self) -> ConsumerInfo:
        channel, queue = self.channel, self.queue
        connection = channel.connection
        active = queue.active_consumer
        status = "up" if active is None else "single_active" if active is self else "waiting"
        return ConsumerInfo(
            consumer_tag=self.tag,
            ack_required=not self.no_ack,
            exclusive=self.exclusive,
            prefetch_count=self.prefetch,
            active=active is None or active is self,
            activity_status=status,
            arguments=dict(self.arguments),
            unacknowledged=self.inflight,
            delivered=self.delivered,
            queue=queue.name,
            vhost=channel.vhost.name,
            channel_name=channel.name,
            channel_number=channel.number,
            connection_name=connection.name,
            peer_host=connection.transport.peer[0],
            peer_port=connection.transport.peer[1],
            user=connection.user.name,
            node=channel.broker.settings.node_name,
        )

    @property
    def shares_credit(self) -> bool:
        return self.channel.global_prefetch > 0

    @property
    def is_writable(self) -> bool:
        return self.channel.flow.is_writable

    @property
    def takes_turns(self) -> bool:
        return self.channel.global_prefetch > 0 and len(self.channel.consumers) > 1

    def credit(self) -> int:
        """How many more deliveries the prefetch limits (basic.qos) and the socket allow."""
        channel = self.channel
        if not channel.flow.is_writable:
            return 0
        shared = MAX_BATCH
        if channel.global_prefetch:
            shared = channel.global_prefetch - channel.inflight
            if shared <= 0:
                return 0  # as in RabbitMQ, for a consumer without acks, too
        if self.no_ack:
            return MAX_BATCH
        credit = self.prefetch - self.inflight if self.prefetch else MAX_BATCH
        return min(credit, shared, MAX_BATCH)

    def deliver(self, delivery: Delivery) -> None:
        channel, part, count = self.channel, delivery.part, delivery.count
        connection, first = channel.connection, channel.last_tag + 1
        channel.last_tag += count
        if part is not None and part.run.longest_frame <= connection.frame_max:
            size = self._write_part(part, first)
        else:
            entries = delivery.entries()
            write = self._write_records if entries[0].is_record else self._write_entries
            size = write(entries, first)
        self.delivered += count
        channel.deliveries.delivered(delivery, self.no_ack)
        if not self.no_ack:
            delivery.first_tag = first
            channel.unacked.add(delivery, first)
            self.inflight += count
            channel.inflight += count
        if channel.global_prefetch:
            channel.on_served(self)
        connection.wrote(size)

    def _write_entries(self, entries: Sequence[Entry], first_tag: int) -> int:
        connection, number = self.channel.connection, self.channel.number
        frame_max, out, size = connection.frame_max, connection.out, 0
        for tag, entry in enumerate(entries, first_tag):
            message = entry.message
            address = message.address
            if address is not self._address:
                self._set_address(address)
            frames: bytes | LargeContent = message.frames
            if message.channel != number or len(frames) > frame_max:
                frames = message.content(number, frame_max)
            out += (self._prefix, encode_tag(tag, entry.redelivered), address.wire, frames)
            size += len(frames) + DELIVER_BYTES
        return size

    def _write_part(self, part: RunPart, first_tag: int) -> int:
        """The frames of several messages of a run are chained without a loop."""
        run, channel, count = part.run, self.channel, part.count
        address, out = run.address, channel.connection.out
        if address is not self._address:
            self._set_address(address)
        contents = run.frames[part.slice]
        if run.channel != channel.number:
            contents = run.frames_for(part.slice, channel.number)
        if count == 1:
            out += (self._prefix, encode_tag(first_tag, False), address.wire, contents[0])
            return len(contents[0]) + DELIVER_BYTES
        tags = map(encode_tag, range(first_tag, first_tag + count), repeat(False))
        out += chain.from_iterable(
            zip(repeat(self._prefix), tags, repeat(address.wire), contents, strict=False)
        )
        return sum(map(len, contents)) + DELIVER_BYTES * count

    def _set_address(self, address: Address) -> None:
        self._address = address
        self._prefix = self._prefix_of(address)

    def _write_records(self, entries: Sequence[Entry], first_tag: int) -> int:
        """Records of a log: their frames are made and chained together."""
        channel, connection, count = self.channel, self.channel.connection, len(entries)
        addresses, contents = entries[0].framed(entries, channel.number, connection.frame_max)
        prefixes: Iterable[bytes] = repeat(self._prefix_of(addresses[0]))
        wires: Iterable[bytes] = repeat(addresses[0].wire)
        if addresses.count(addresses[0]) < count:
            prefixes = map(self._prefix_of, addresses)
            wires = [address.wire for address in addresses]
        tags = range(first_tag, first_tag + count)
        heads = map(encode_tag, tags, [entry.redelivered for entry in entries])
        connection.out += chain.from_iterable(zip(prefixes, heads, wires, contents, strict=False))
        return sum(map(len, contents)) + DELIVER_BYTES * count

    def _prefix_of(self, address: Address) -> bytes:
        return self._prefixes.get(len(address.wire)) or self._add_prefix(address)

    def _add_prefix(self, address: Address) -> bytes:
        """The start of a basic.deliver frame depends only on the length of the address."""
        prefix = deliver_prefix(self.channel.number, self.tag.encode(), address)
        self._prefixes[len(address.wire)] = prefix
        return prefix

    def cancelled(self) -> None:
        """The queue is gone: remove the consumer, and tell a client that wants to know."""
        self.channel.remove_consumer(self)
        if self.channel.connection.wants_cancel_notify:
            cancel = commands.Basic.Cancel(self.tag, True)
            self.channel.notify(encode_method(self.channel.number, cancel))


class ReplyConsumer(AmqpConsumer):
    """The consumer of direct replies: no prefetch limits it."""

    __slots__ = ()

    def credit(self) -> int:
        return MAX_BATCH if self.channel.flow.is_writable else 0


def group_by_queue(deliveries: list[Delivery]) -> Collection[list[Delivery]]:
    """The deliveries of each queue to each consumer."""
    groups: dict[tuple[Queue, Consumer | None], list[Delivery]] = {}
    for delivery in deliveries:
        groups.setdefault((delivery.queue, delivery.consumer), []).append(delivery)
    return groups.values()
