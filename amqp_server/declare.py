"""Topology methods of a channel: exchanges, queues, bindings.

Each method names what it needs: rights, then the virtual host's verb, then its answer. Answers to
durable changes leave when the change is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amqp_server.codec import Method, QueueDeclareOk, commands, encode_method
from bindings import Binding, Destination, DestinationKind
from exchange import ExchangeSpec
from leveret.broker import Action, governing
from leveret.broker.log_keeper import require_made
from leveret.broker.names import (
    require_deletable,
    require_not_default,
    require_unreserved,
    server_name,
)
from leveret.model.errors import BrokerError, NotFound, NotImplementedHere
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
        version = self._channel.vhost.version
        try:
            self._handle(method, table)
        except BrokerError as error:
            if not getattr(method, "passive", False):
                self._note(method, str(int(error.code)))
            raise
        if self._channel.vhost.version != version or isinstance(method, commands.Queue.Purge):
            self._note(method)

    def _handle(self, method: Any, table: bytes) -> None:
        if isinstance(method, commands.Queue.Declare):
            self._declare_queue(method, table)
            return
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise NotImplementedHere(f"{method.name} is not implemented")
        handler(self, method)

    def _note(self, method: Any, outcome: str = "done") -> None:
        """Something was changed: in the audit log, unless only this connection can see it."""
        session = self._channel.session
        is_made = isinstance(method, commands.Queue.Declare) and outcome != "done"
        is_last = getattr(method, "queue", None) == "" and not is_made  # it has not got a name
        queue = self._last_queue if is_last else _named_by(method)
        held = self._channel.vhost.queues.get(queue)
        if getattr(method, "exclusive", False) or (held is not None and held.owner is session):
            return
        self._channel.broker.access.audit.note(
            user=session.user.name,
            source="{}:{}".format(*session.line.peer),
            via="AMQP",
            vhost=self._channel.vhost.name,
            action=method.name.lower(),
            target=" -> ".join(_touched(method, queue)),
            outcome=outcome,
        )

    def queue_for(self, action: Action, name: str) -> HeldQueue:
        """The named queue, or the last one declared on this channel, if the user may."""
        wanted = self._named(name)
        self._channel.demand(action, queue=wanted)
        return self._channel.vhost.queue(wanted, self._channel.session)

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
            channel.demand(Action.QUEUE_INSPECT, queue=name)
            queue = channel.vhost.queue(name, session)
        else:
            queue = self._make_queue(method, name, table)
        self._last_queue = queue.name
        if not method.nowait:
            answer = QueueDeclareOk(queue.name, queue.ready_count, len(queue.consumers))
            durable = method.durable and not method.passive
            channel.reply(answer, durable, lambda: require_made(queue))

    def _make_queue(self, method: Any, name: str, table: bytes) -> HeldQueue:
        """Find or make it. Patterns of rights see the name the server gives, as any other."""
        channel = self._channel
        spec = QueueSpec(
            name or server_name(),
            method.durable and not method.exclusive,
            method.exclusive,
            method.auto_delete,
            dict(method.arguments or {}),
            type_names(table) if table else {},
        )
        if name:
            require_unreserved("queue", name)
        channel.demand(Action.QUEUE_DECLARE, queue=spec.name)
        maker = (channel.broker, channel.session.user.name, channel.vhost)
        governing.require_dead_letters(*maker, spec.name, spec.arguments)
        governing.require_partitions(*maker, spec.name, spec.arguments)
        if not name:
            return channel.vhost.declare_server_named(spec, channel.session)
        return channel.vhost.declare_queue(channel.vhost.of_default_type(spec), channel.session)

    def _declare_reply_queue(self, method: Any, name: str) -> None:
        """A responder asks this way whether the requester is still there."""
        self._channel.vhost.require_reply_queue(name)
        if not method.nowait:
            self._channel.reply(QueueDeclareOk(name, 0, 1))

    def _bind_queue(self, method: Any) -> None:
        name, key = self._binding_end(method)
        channel, destination = self._channel, Destination(DestinationKind.QUEUE, name)
        self._demand_binding(Action.QUEUE_BIND, destination, method.exchange, key)
        channel.vhost.exchange(method.exchange)
        channel.vhost.queue(name, channel.session)
        channel.vhost.bind(method.exchange, destination, key, dict(method.arguments or {}))
        if not method.nowait:
            channel.reply(commands.Queue.BindOk(), durable=True)

    def _unbind_queue(self, method: Any) -> None:
        name, key = self._binding_end(method)
        channel, destination = self._channel, Destination(DestinationKind.QUEUE, name)
        self._demand_binding(Action.QUEUE_UNBIND, destination, method.exchange, key)
        arguments = dict(method.arguments or {})
        if channel.vhost.is_bound(Binding.of(method.exchange, destination, key, arguments)):
            channel.vhost.queue(name, channel.session)  # whose binding does not exist may be locked
        channel.vhost.unbind(method.exchange, destination, key, arguments)
        channel.reply(commands.Queue.UnbindOk(), durable=True)

    def _demand_binding(
        self, action: Action, destination: Destination, source: str, key: str
    ) -> None:
        """Rights come before everything else, so that nobody learns what exists by trying."""
        channel = self._channel
        channel.demand(action, destination=destination.name)
        require_not_default(source)
        if destination.kind is DestinationKind.EXCHANGE:
            require_not_default(destination.name)
        channel.demand(action, source=source)
        exchange = channel.vhost.exchanges.get(source)
        if exchange is not None:
            channel.demand_topic(action, exchange, (key,))

    def _binding_end(self, method: Any) -> tuple[str, str]:
        """Queue and key; with neither given, the last queue declared, by its name."""
        name = self._named(method.queue)
        key = name if not method.queue and not method.routing_key else method.routing_key
        return name, key

    def _purge(self, method: Any) -> None:
        queue = self.queue_for(Action.QUEUE_PURGE, method.queue)
        gone = queue.purge()
        if not method.nowait:
            self._channel.reply(commands.Queue.PurgeOk(gone), durable=queue.spec.durable)

    def _delete_queue(self, method: Any) -> None:
        channel = self._channel
        name = self._named(method.queue)
        channel.demand(Action.QUEUE_DELETE, queue=name)
        channel.late = []
        try:
            gone = channel.vhost.delete_queue(
                name, channel.session, method.if_unused, method.if_empty
            )
        finally:
            notices, channel.late = channel.late, None
        answer = commands.Queue.DeleteOk(gone)
        frame = b"" if method.nowait else encode_method(channel.number, answer)
        channel.answer(b"".join((frame, *notices)), durable=not method.nowait)

    # Exchanges ---------------------------------------------------------------------------------

    def _declare_exchange(self, method: Any) -> None:
        channel = self._channel
        name = _clean(method.exchange)
        if method.passive:
            require_not_default(name)
            channel.demand(Action.EXCHANGE_INSPECT, exchange=name)
            channel.vhost.exchange(name)
        else:
            self._make_exchange(method, name)
        if not method.nowait:
            durable = method.durable and not method.passive
            channel.reply(commands.Exchange.DeclareOk(), durable=durable)

    def _make_exchange(self, method: Any, name: str) -> None:
        channel = self._channel
        spec = ExchangeSpec(
            name,
            method.exchange_type,
            method.durable,
            method.auto_delete,
            method.internal,
            dict(method.arguments or {}),
        )
        require_not_default(name)
        channel.demand(Action.EXCHANGE_DECLARE, exchange=name)
        if spec.alternate is not None and name not in channel.vhost.exchanges:
            channel.demand(Action.EXCHANGE_ALTERNATE, exchange=name, alternate=spec.alternate)
        channel.vhost.declare_exchange(spec)

    def _delete_exchange(self, method: Any) -> None:
        channel = self._channel
        require_deletable(method.exchange, channel.vhost.name)
        channel.demand(Action.EXCHANGE_DELETE, exchange=method.exchange)
        channel.vhost.delete_exchange(method.exchange, method.if_unused)
        if not method.nowait:
            channel.reply(commands.Exchange.DeleteOk(), durable=True)

    def _bind_exchange(self, method: Any) -> None:
        destination = Destination(DestinationKind.EXCHANGE, method.destination)
        self._demand_binding(Action.EXCHANGE_BIND, destination, method.source, method.routing_key)
        self._channel.vhost.bind(
            method.source, destination, method.routing_key, dict(method.arguments or {})
        )
        if not method.nowait:
            self._channel.reply(commands.Exchange.BindOk(), durable=True)

    def _unbind_exchange(self, method: Any) -> None:
        destination = Destination(DestinationKind.EXCHANGE, method.destination)
        self._demand_binding(Action.EXCHANGE_UNBIND, destination, method.source, method.routing_key)
        self._channel.vhost.unbind(
            method.source, destination, method.routing_key, dict(method.arguments or {})
        )
        if not method.nowait:
            self._channel.reply(commands.Exchange.UnbindOk(), durable=True)


def _clean(name: str) -> str:
    return name.replace("\r", "").replace("\n", "")


def _named_by(method: Any) -> str:
    return str(getattr(method, "queue", ""))


def _touched(method: Any, queue: str) -> list[str]:
    """Names of what a method changes: from where to where, if it binds."""
    names = [getattr(method, field, "") for field in ("source", "exchange", "destination")]
    return [name for name in (*names, queue) if name]


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
