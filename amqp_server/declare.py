"""Topology methods of a channel: exchanges, queues, bindings.

Each method names what it needs: rights, then the virtual host's verb, then its answer. Answers to
durable changes leave when the change is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amqp_server.codec import Method, QueueDeclareOk, commands
from bindings import Destination, DestinationKind
from exchange import ExchangeSpec
from leveret.broker import Right, governing
from leveret.model.errors import NotFound, NotImplementedHere
from leveret.model.properties import DIRECT_REPLY_TO
from leveret.model.tables import type_names
from queues import HeldQueue, QueueSpec

if TYPE_CHECKING:
    from amqp_server.channel import Channel


class Declarations:
    """Remembers the last queue declared here: an empty name means that one."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last_queue = ""

    def handle(self, method: Method, table: bytes) -> None:
        if isinstance(method, commands.Queue.Declare):
            self._declare_queue(method, table)
            return
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise NotImplementedHere(f"{method.name} is not implemented")
        handler(self, method)

    def queue_for(self, name: str) -> HeldQueue:
        """The named queue, or the last one declared on this channel."""
        return self._channel.vhost.queue(self._named(name), self._channel.session)

    def _named(self, name: str) -> str:
        if name:
            return name
        if not self._last_queue:
            raise NotFound("no previously declared queue")
        return self._last_queue

    # Queues ------------------------------------------------------------------------------------

    def _declare_queue(self, method: Any, table: bytes) -> None:
        channel, session = self._channel, self._channel.session
        name = _clean(method.queue)
        if name.startswith(DIRECT_REPLY_TO):
            self._declare_reply_queue(method, name)
            return
        if method.passive:
            queue = channel.vhost.queue(name or self._named(name), session)
        else:
            spec = QueueSpec(
                name,
                method.durable and not method.exclusive,
                method.exclusive,
                method.auto_delete,
                dict(method.arguments or {}),
                type_names(table) if table else {},
            )
            channel.require(Right.CONFIGURE, "queue", name or "amq.gen")
            governing.require_dead_letters(
                channel.broker, session.user.name, channel.vhost, name or "amq.gen", spec.arguments
            )
            if name:
                queue = channel.vhost.declare_queue(spec, session)
            else:
                queue = channel.vhost.declare_server_named(spec, session)
            if method.exclusive:
                session.exclusive_queues[queue.name] = queue
        self._last_queue = queue.name
        if not method.nowait:
            answer = QueueDeclareOk(queue.name, queue.ready_count, len(queue.consumers))
            channel.reply(answer, durable=method.durable and not method.passive)

    def _declare_reply_queue(self, method: Any, name: str) -> None:
        """A responder asks this way whether the requester is still there."""
        self._channel.vhost.require_reply_queue(name)
        if not method.nowait:
            self._channel.reply(QueueDeclareOk(name, 0, 1))

    def _bind_queue(self, method: Any) -> None:
        name, key = self._binding_end(method)
        channel = self._channel
        if method.exchange:
            channel.vhost.exchange(method.exchange)
        channel.vhost.queue(name, channel.session)
        channel.require(Right.WRITE, "queue", name)
        channel.require(Right.READ, "exchange", method.exchange)
        destination = Destination(DestinationKind.QUEUE, name)
        channel.vhost.bind(method.exchange, destination, key, dict(method.arguments or {}))
        if not method.nowait:
            channel.reply(commands.Queue.BindOk(), durable=True)

    def _unbind_queue(self, method: Any) -> None:
        name, key = self._binding_end(method)
        channel = self._channel
        if name in channel.vhost.queues:
            channel.vhost.queue(name, channel.session)
        channel.require(Right.WRITE, "queue", name)
        channel.require(Right.READ, "exchange", method.exchange)
        destination = Destination(DestinationKind.QUEUE, name)
        channel.vhost.unbind(method.exchange, destination, key, dict(method.arguments or {}))
        channel.reply(commands.Queue.UnbindOk(), durable=True)

    def _binding_end(self, method: Any) -> tuple[str, str]:
        """Queue and key; with neither given, the last queue declared, by its name."""
        name = self._named(method.queue)
        key = name if not method.queue and not method.routing_key else method.routing_key
        return name, key

    def _purge(self, method: Any) -> None:
        queue = self.queue_for(method.queue)
        self._channel.require(Right.READ, "queue", queue.name)
        gone = queue.purge()
        if not method.nowait:
            self._channel.reply(commands.Queue.PurgeOk(gone), durable=queue.spec.durable)

    def _delete_queue(self, method: Any) -> None:
        channel = self._channel
        name = self._named(method.queue)
        channel.require(Right.CONFIGURE, "queue", name)
        gone = channel.vhost.delete_queue(name, channel.session, method.if_unused, method.if_empty)
        channel.session.exclusive_queues.pop(name, None)
        if not method.nowait:
            channel.reply(commands.Queue.DeleteOk(gone), durable=True)

    # Exchanges ---------------------------------------------------------------------------------

    def _declare_exchange(self, method: Any) -> None:
        channel = self._channel
        name = _clean(method.exchange)
        if method.passive:
            channel.vhost.passive_exchange(name)
        else:
            channel.require(Right.CONFIGURE, "exchange", name)
            spec = ExchangeSpec(
                name,
                method.exchange_type,
                method.durable,
                method.auto_delete,
                method.internal,
                dict(method.arguments or {}),
            )
            if spec.alternate is not None:
                channel.require(Right.READ, "exchange", name)
                channel.require(Right.WRITE, "exchange", spec.alternate)
            channel.vhost.declare_exchange(spec)
        if not method.nowait:
            durable = method.durable and not method.passive
            channel.reply(commands.Exchange.DeclareOk(), durable=durable)

    def _delete_exchange(self, method: Any) -> None:
        channel = self._channel
        channel.require(Right.CONFIGURE, "exchange", method.exchange)
        channel.vhost.delete_exchange(method.exchange, method.if_unused)
        if not method.nowait:
            channel.reply(commands.Exchange.DeleteOk(), durable=True)

    def _bind_exchange(self, method: Any) -> None:
        channel = self._channel
        channel.require(Right.WRITE, "exchange", method.destination)
        channel.require(Right.READ, "exchange", method.source)
        channel.vhost.bind(
            method.source,
            Destination(DestinationKind.EXCHANGE, method.destination),
            method.routing_key,
            dict(method.arguments or {}),
        )
        if not method.nowait:
            channel.reply(commands.Exchange.BindOk(), durable=True)

    def _unbind_exchange(self, method: Any) -> None:
        channel = self._channel
        channel.require(Right.WRITE, "exchange", method.destination)
        channel.require(Right.READ, "exchange", method.source)
        channel.vhost.unbind(
            method.source,
            Destination(DestinationKind.EXCHANGE, method.destination),
            method.routing_key,
            dict(method.arguments or {}),
        )
        if not method.nowait:
            channel.reply(commands.Exchange.UnbindOk(), durable=True)


def _clean(name: str) -> str:
    return name.replace("\r", "").replace("\n", "")


_HANDLERS: dict[type[Method], Callable[[Declarations, Any], None]] = {
    commands.Queue.Bind: Declarations._bind_queue,
    commands.Queue.Unbind: Declarations._unbind_queue,
    commands.Queue.Purge: Declarations._purge,
    commands.Queue.Delete: Declarations._delete_queue,
    commands.Exchange.Declare: Declarations._declare_exchange,
    commands.Exchange.Delete: Declarations._delete_exchange,
    commands.Exchange.Bind: Declarations._bind_exchange,
    commands.Exchange.Unbind: Declarations._unbind_exchange,
}
