"""The exchange and queue methods of a channel: declare, delete, bind, unbind, purge.

Each handler checks permissions, calls the virtual host, and answers. Answers to durable changes are
sent when the change is on disk. Event-loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.amqp_server.codec import Method, commands, encode_method
from leveret.amqp_server.replies import QueueDeclareOk
from leveret.bindings import Binding, Destination, DestinationKind
from leveret.broker import Action
from leveret.broker.access.declare_permissions import (
    require_dead_letter_permission,
    require_partition_permission,
)
from leveret.broker.names import (
    require_deletable,
    require_not_default,
    require_unreserved,
    server_name,
)
from leveret.exchange import ExchangeSpec
from leveret.model.errors import BrokerError, NotFound, NotImplementedHere
from leveret.model.message import DIRECT_REPLY_TO
from leveret.model.store import StoreState
from leveret.model.tables import type_names
from leveret.queues.log.log_queue import require_created
from leveret.queues.port import Queue
from leveret.queues.spec import QueueSpec

if TYPE_CHECKING:
    from leveret.amqp_server.channel import Channel


class TopologyMethods:
    """Keeps the name of the last queue declared on the channel: an empty name refers to it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last_queue = ""

    def handle(self, method: Method, table: bytes) -> None:
        self._audited(method, partial(self._handle, method, table))

    def _audited(self, method: Method, change: Callable[[], None]) -> None:
        version = self._channel.vhost.version
        try:
            change()
        except BrokerError as error:
            if not getattr(method, "passive", False):
                self._audit(method, str(int(error.code)))
            raise
        if self._channel.vhost.version != version or isinstance(method, commands.Queue.Purge):
            self._audit(method)

    def waits_for_lease(self, method: Any) -> bool:
        """Whether the method would find messages that consumers are about to take."""
        if type(method) not in _LOOKS_AT_MESSAGES:
            return False
        queue = self._channel.vhost.queues.get(method.queue or self._last_queue)
        if queue is None or self._channel.broker.store.state is not StoreState.RUNNING:
            return False
        queue.deliver_pending()  # requests a lease if there is none
        return queue.waits_for_lease

    def _handle(self, method: Any, table: bytes) -> None:
        if isinstance(method, commands.Queue.Declare):
            self._declare_queue(method, table)
            return
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise NotImplementedHere(f"{method.name} is not implemented")
        handler(self, method)

    def _audit(self, method: Any, outcome: str = "done") -> None:
        """Write a change to the audit log, unless only this connection can see it."""
        connection = self._channel.connection
        name = str(getattr(method, "queue", ""))
        is_failed_declare = isinstance(method, commands.Queue.Declare) and outcome != "done"
        if getattr(method, "queue", None) == "" and not is_failed_declare:
            name = self._last_queue
        queue = self._channel.vhost.queues.get(name)
        if getattr(method, "exclusive", False) or (queue is not None and queue.owner is connection):
            return
        self._channel.broker.audit.record(
            user=connection.user.name,
            source="{}:{}".format(*connection.transport.peer),
            via="AMQP",
            vhost=self._channel.vhost.name,
            action=method.name.lower(),
            target=" -> ".join(_changed_names(method, name)),
            outcome=outcome,
        )

    def queue_for(self, action: Action, name: str) -> Queue:
        """The named queue, or the last one declared on this channel, if the user may use it."""
        resolved = self._resolve(name)
        self._channel.authorize(action, queue=resolved)
        return self._channel.vhost.queue(resolved, self._channel.connection)

    def _resolve(self, name: str) -> str:
        if name:
            return name
        if not self._last_queue:
            raise NotFound("no previously declared queue")
        return self._last_queue

    # Queues ------------------------------------------------------------------------------------

    def _declare_queue(self, method: Any, table: bytes) -> None:
        channel, connection = self._channel, self._channel.connection
        name = _without_newlines(method.queue)
        if name.startswith(DIRECT_REPLY_TO):
            self._declare_reply_queue(method, name)
            return
        if method.passive:
            channel.authorize(Action.QUEUE_INSPECT, queue=name)
            self._answer_declare(method, channel.vhost.queue(name, connection))
            return
        spec = self._authorized_spec(method, name, table)
        if not name:
            self._answer_declare(method, channel.vhost.create_queue(spec, connection))
        elif not self._waits_for_files(method, table, spec):
            self._declare(method, spec)

    def _declare(self, method: Any, spec: QueueSpec) -> None:
        queue = self._channel.vhost.declare_queue(spec, self._channel.connection)
        self._answer_declare(method, queue)

    def _answer_declare(self, method: Any, queue: Queue) -> None:
        self._last_queue = queue.name
        if not method.nowait:
            answer = QueueDeclareOk(queue.name, queue.ready_count, len(queue.consumers))
            durable = method.durable and not method.passive
            self._channel.reply(answer, durable, lambda: require_created(queue))

    def _authorized_spec(self, method: Any, name: str, table: bytes) -> QueueSpec:
        """The queue to declare. Permissions are checked for server-generated names as well."""
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
        channel.authorize(Action.QUEUE_DECLARE, queue=spec.name)
        maker = (channel.broker, channel.connection.user.name, channel.vhost)
        require_dead_letter_permission(*maker, spec.name, spec.arguments)
        require_partition_permission(*maker, spec.name, spec.arguments)
        return channel.vhost.with_default_type(spec) if name else spec

    def _waits_for_files(self, method: Method, table: bytes, spec: QueueSpec) -> bool:
        """Whether the declaration continues when the partitions of a wide log have been made."""
        channel, users = self._channel, self._channel.broker.users
        revision = users.revision

        def declare(error: BrokerError | None) -> None:
            with channel.acting():
                if error is not None:
                    self._audited(method, partial(_raise, error))
                elif users.revision == revision:
                    self._audited(method, partial(self._declare, method, spec))
                else:  # permissions have changed: it starts over
                    self.handle(method, table)

        def on_staged(error: BrokerError | None) -> None:
            channel.resume(partial(declare, error))

        is_waiting = channel.broker.log_manager.staging.stage(channel.vhost, spec, on_staged)
        if is_waiting:
            channel.begin_waiting()
        return is_waiting

    def _declare_reply_queue(self, method: Any, name: str) -> None:
        """A responder checks in this way whether the requester is still connected."""
        self._channel.vhost.require_reply_queue(name)
        if not method.nowait:
            self._channel.reply(QueueDeclareOk(name, 0, 1))

    def _bind_queue(self, method: Any) -> None:
        name, key = self._queue_and_key(method)
        channel, destination = self._channel, Destination(DestinationKind.QUEUE, name)
        self._authorize_binding(Action.QUEUE_BIND, destination, method.exchange, key)
        channel.vhost.exchange(method.exchange)
        channel.vhost.queue(name, channel.connection)
        channel.vhost.bind(method.exchange, destination, key, dict(method.arguments or {}))
        if not method.nowait:
            channel.reply(commands.Queue.BindOk(), durable=True)

    def _unbind_queue(self, method: Any) -> None:
        name, key = self._queue_and_key(method)
        channel, destination = self._channel, Destination(DestinationKind.QUEUE, name)
        self._authorize_binding(Action.QUEUE_UNBIND, destination, method.exchange, key)
        arguments = dict(method.arguments or {})
        if channel.vhost.is_bound(Binding.of(method.exchange, destination, key, arguments)):
            channel.vhost.queue(name, channel.connection)
        channel.vhost.unbind(method.exchange, destination, key, arguments)
        channel.reply(commands.Queue.UnbindOk(), durable=True)

    def _authorize_binding(
        self, action: Action, destination: Destination, source: str, key: str
    ) -> None:
        """Permissions come first, so that a user cannot find out which objects exist."""
        channel = self._channel
        channel.authorize(action, destination=destination.name)
        require_not_default(source)
        if destination.kind is DestinationKind.EXCHANGE:
            require_not_default(destination.name)
        channel.authorize(action, source=source)
        exchange = channel.vhost.exchanges.get(source)
        if exchange is not None:
            channel.authorize_topic(action, exchange, (key,))

    def _queue_and_key(self, method: Any) -> tuple[str, str]:
        """Queue and key; if both are empty, the last declared queue and its name."""
        name = self._resolve(method.queue)
        key = name if not method.queue and not method.routing_key else method.routing_key
        return name, key

    def _purge(self, method: Any) -> None:
        queue = self.queue_for(Action.QUEUE_PURGE, method.queue)
        count = queue.purge()
        if not method.nowait:
            self._channel.reply(commands.Queue.PurgeOk(count), durable=queue.spec.durable)

    def _delete_queue(self, method: Any) -> None:
        channel = self._channel
        name = self._resolve(method.queue)
        channel.authorize(Action.QUEUE_DELETE, queue=name)
        with channel.collecting_notices() as notices:
            count = channel.vhost.delete_queue(
                name, channel.connection, method.if_unused, method.if_empty
            )
        answer = commands.Queue.DeleteOk(count)
        frame = b"" if method.nowait else encode_method(channel.number, answer)
        channel.send_reply(b"".join((frame, *notices)), durable=not method.nowait)

    # Exchanges ---------------------------------------------------------------------------------

    def _declare_exchange(self, method: Any) -> None:
        channel = self._channel
        name = _without_newlines(method.exchange)
        if method.passive:
            require_not_default(name)
            channel.authorize(Action.EXCHANGE_INSPECT, exchange=name)
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
        channel.authorize(Action.EXCHANGE_DECLARE, exchange=name)
        if spec.alternate is not None and name not in channel.vhost.exchanges:
            channel.authorize(Action.EXCHANGE_ALTERNATE, exchange=name, alternate=spec.alternate)
        channel.vhost.declare_exchange(spec)

    def _delete_exchange(self, method: Any) -> None:
        channel = self._channel
        require_deletable(method.exchange, channel.vhost.name)
        channel.authorize(Action.EXCHANGE_DELETE, exchange=method.exchange)
        channel.vhost.delete_exchange(method.exchange, method.if_unused)
        if not method.nowait:
            channel.reply(commands.Exchange.DeleteOk(), durable=True)

    def _bind_exchange(self, method: Any) -> None:
        destination, key = _exchange_destination(method), method.routing_key
        self._authorize_binding(Action.EXCHANGE_BIND, destination, method.source, key)
        self._channel.vhost.bind(method.source, destination, key, dict(method.arguments or {}))
        if not method.nowait:
            self._channel.reply(commands.Exchange.BindOk(), durable=True)

    def _unbind_exchange(self, method: Any) -> None:
        destination, key = _exchange_destination(method), method.routing_key
        self._authorize_binding(Action.EXCHANGE_UNBIND, destination, method.source, key)
        self._channel.vhost.unbind(method.source, destination, key, dict(method.arguments or {}))
        if not method.nowait:
            self._channel.reply(commands.Exchange.UnbindOk(), durable=True)


def _exchange_destination(method: Any) -> Destination:
    return Destination(DestinationKind.EXCHANGE, method.destination)


def _raise(error: BrokerError) -> None:
    raise error


def _without_newlines(name: str) -> str:
    return name.replace("\r", "").replace("\n", "")


def _changed_names(method: Any, queue: str) -> list[str]:
    """Names of what a method changes; of a binding, source and destination."""
    names = [getattr(method, field, "") for field in ("source", "exchange", "destination")]
    return [name for name in (*names, queue) if name]


_LOOKS_AT_MESSAGES = frozenset(
    {commands.Queue.Declare, commands.Queue.Purge, commands.Queue.Delete}
)
_HANDLERS: dict[type[Method], Callable[[TopologyMethods, Any], None]] = {
    commands.Queue.Bind: TopologyMethods._bind_queue,
    commands.Queue.Unbind: TopologyMethods._unbind_queue,
    commands.Queue.Purge: TopologyMethods._purge,
    commands.Queue.Delete: TopologyMethods._delete_queue,
    commands.Exchange.Declare: TopologyMethods._declare_exchange,
    commands.Exchange.Delete: TopologyMethods._delete_exchange,
    commands.Exchange.Bind: TopologyMethods._bind_exchange,
    commands.Exchange.Unbind: TopologyMethods._unbind_exchange,
}
