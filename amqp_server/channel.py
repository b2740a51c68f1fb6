"""One AMQP channel: publishing, consuming, settling, confirms and transactions.

Exchange and queue methods are in topology_methods.py, deliveries are written by consumer.py.

A channel handles one method after the other. When an answer must wait for the disk (a durable
declaration, a commit, a synchronous method after acks of durable messages), the channel *waits*:
methods that arrive meanwhile are deferred and run in order when the batch is on disk. Publishing
never waits; publisher confirms have their own ledger (`Confirms`). Event-loop thread only; after a
crash unacknowledged deliveries are ready again.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.amqp_server.ack_timeout import CONSUMER_TIMEOUT, validate_timeout
from leveret.amqp_server.cleanup import Cleanup
from leveret.amqp_server.codec import (
    Method,
    Publish,
    commands,
    encode_ack,
    encode_get_ok,
    encode_method,
    encode_nack,
    encode_return,
)
from leveret.amqp_server.consumer import AmqpConsumer, ReplyConsumer, group_by_queue
from leveret.amqp_server.flow_control import DEFERRED_TABLE_FACTOR
from leveret.amqp_server.topology_methods import TopologyMethods
from leveret.amqp_server.transaction import Transaction
from leveret.amqp_server.unacked_tags import UnackedTags
from leveret.amqp_server.wire import METHODS_AT_ONCE
from leveret.broker import Action, ConfirmWait, Plan
from leveret.broker.events import firehose
from leveret.broker.names import require_not_internal
from leveret.broker.publishing.large_bodies import needs_parts, stage_runs, store_parts
from leveret.broker.publishing.validation import (
    cc_and_bcc_keys,
    check_user_id_and_expiration,
    require_record_keys,
    without_bcc,
)
from leveret.exchange import Exchange
from leveret.model.clients import ChannelInfo
from leveret.model.definitions import Origin
from leveret.model.errors import (
    AccessRefused,
    BrokerError,
    NotAllowed,
    NotImplementedHere,
    PreconditionFailed,
    ReplyCode,
)
from leveret.model.history import OriginKind
from leveret.model.message import DIRECT_REPLY_TO, LargeBody, Message, replace_property
from leveret.model.mypyc import mypyc_attr
from leveret.model.run import Run
from leveret.model.store import StagedRuns, StoreState
from leveret.queues.counters import QueueCounters
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Outcome
from leveret.queues.log.readers import OFFSET_ARGUMENT
from leveret.queues.port import Queue

if TYPE_CHECKING:
    from leveret.amqp_server.connection import AmqpConnection

QUEUES_PER_EFFORT = 8
"""Enqueuing a message to this many queues takes about as long as parsing it."""
_PUBLISH, _ACK = (60, 40), (60, 80)
_TX_COMMIT = (90, 20)


class Confirms:
    """Publisher confirms of one channel: answers leave in order, in as few frames as possible.

    A message that waits for the disk holds back the confirms after it; messages that wait for
    nothing join the group before them. There is one ledger per channel, so that an ack never
    overtakes another one and `multiple` never covers a message that is still waiting. After a
    crash the publisher has no answer for what was not on disk, and publishes it again.

    `on_ready` is called when there are answers to send.
    """

    def __init__(self, channel: int, on_ready: Callable[[], None]) -> None:
        self._channel = channel
        self._on_ready = on_ready
        self._waiting: deque[tuple[int, int, bool]] = deque()  # batch, last number, accepted
        self._answers: list[bytes] = []
        self.settled = 0
        """Publishes up to this number have been answered."""
        self._ready = 0  # publishes up to this number can be acked
        self.published = 0

    @property
    def unconfirmed(self) -> int:
        return self.published - self.settled

    def accepted(self, batch_number: int, count: int = 1) -> ConfirmWait:
        """The next `count` publishes were enqueued; they wait for this batch (0: for nothing)."""
        number = self.published = self.published + count
        waiting = self._waiting
        if not waiting:
            if batch_number:
                waiting.append((batch_number, number, True))
                return ConfirmWait.NEW_BATCH
            self._ready = number
            self._on_ready()
            return ConfirmWait.NONE
        last_batch, _, is_accepted = waiting[-1]
        if batch_number > last_batch:
            waiting.append((batch_number, number, True))
            return ConfirmWait.NEW_BATCH
        if is_accepted:
            waiting[-1] = (last_batch, number, True)
        else:
            waiting.append((last_batch, number, True))
        return ConfirmWait.KNOWN_BATCH

    def rejected(self) -> None:
        """The next publish was not enqueued: it gets its own nack."""
        number = self.published = self.published + 1
        if self._waiting:
            self._waiting.append((self._waiting[-1][0], number, False))
        else:
            self._make_ack()
            self._nack(number)
            self._on_ready()

    def on_committed(self, batch_number: int) -> None:
        """Everything up to this batch is on disk."""
        while self._waiting and self._waiting[0][0] <= batch_number:
            _, number, is_accepted = self._waiting.popleft()
            if is_accepted:
                self._ready = number
            else:
                self._make_ack()
                self._nack(number)
        self._on_ready()

    def on_failed(self, batch_number: int) -> None:
        """The messages of this batch are not on disk and never will be."""
        self._make_ack()
        while self._waiting and self._waiting[0][0] <= batch_number:
            _, number, _ = self._waiting.popleft()
            multiple = number - self.settled > 1
            self._answers.append(encode_nack(self._channel, number, multiple))
            self.settled = self._ready = number
        self._on_ready()

    def _nack(self, number: int) -> None:
        self._answers.append(encode_nack(self._channel, number, False))
        self.settled = self._ready = number

    def _make_ack(self) -> None:
        if self._ready > self.settled:
            multiple = self._ready - self.settled > 1
            self._answers.append(encode_ack(self._channel, self._ready, multiple))
            self.settled = self._ready

    def answers(self) -> bytes:
        """Take the frames to send now."""
        self._make_ack()
        answers, self._answers = self._answers, []
        return b"".join(answers)


@mypyc_attr(allow_interpreted_subclasses=True)
class Channel:
    __deletable__ = ("topology",)

    def __init__(self, connection: AmqpConnection, number: int) -> None:
        self.connection = connection
        self.flow = connection.flow
        self.broker = connection.broker
        self.vhost = connection.vhost
        self.number = number
        self.unacked = UnackedTags()
        self.last_tag = 0
        self.consumers: dict[str, AmqpConsumer] = {}
        self._reply_consumer: ReplyConsumer | None = None
        self._prefetch = 0
        self.global_prefetch = 0
        self.inflight = 0
        """Deliveries to consumers that are not settled; `global_prefetch` limits them."""
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self._deferred: deque[Callable[[], None]] | None = None
        """Methods to run when the channel no longer waits; None while it does not wait."""
        self._deferred_bytes = 0
        self._is_reader_queued = False
        self._notices: list[bytes] | None = None
        self.published = self.acknowledged = self.returned = self.dropped = 0
        self.deliveries = QueueCounters()
        self.closed = False
        self._origin = 0
        self._write_granted: dict[str, int] = {}
        """Exchanges that the user may publish to, and the permission revision of that answer."""
        self._has_unsynced_acks = False
        self.topology = TopologyMethods(self)

    def __repr__(self) -> str:
        return (
            f"<Channel {self.number} unacked={len(self.unacked)} consumers={len(self.consumers)}>"
        )

    @property
    def name(self) -> str:
        return f"{self.connection.name} ({self.number})"

    def info(self) -> ChannelInfo:
        connection, confirms, transaction = self.connection, self.confirms, self.transaction
        return ChannelInfo(
            name=self.name,
            number=self.number,
            vhost=self.vhost.name,
            user=connection.user.name,
            node=self.broker.settings.node_name,
            connection_name=connection.name,
            peer_host=connection.transport.peer[0],
            peer_port=connection.transport.peer[1],
            consumer_count=len(self.consumers),
            messages_unacknowledged=len(self.unacked),
            messages_unconfirmed=confirms.unconfirmed if confirms is not None else 0,
            acks_uncommitted=(
                sum(map(len, transaction.settled_deliveries())) if transaction else 0
            ),
            prefetch_count=self._prefetch,
            global_prefetch_count=self.global_prefetch,
            confirm=confirms is not None,
            transactional=transaction is not None,
            published=self.published,
            acknowledged=self.acknowledged,
            returned=self.returned,
        )

    def counts(self) -> tuple[int, ...]:
        """Totals in the order of `leveret.broker.metrics.CHANNEL_FIELDS`."""
        deliveries, confirms = self.deliveries, self.confirms
        return (
            self.published,
            confirms.settled if confirms is not None else 0,
            self.returned,
            self.dropped,
            deliveries.delivered_ack,
            deliveries.delivered_no_ack,
            deliveries.got_ack,
            deliveries.got_no_ack,
            deliveries.redelivered,
            self.acknowledged,
        )

    # Methods -----------------------------------------------------------------------------------

    def receive_method(self, method: Method, table: bytes) -> None:
        """A method from the wire: handle it now, or after the methods that are deferred."""
        if self._deferred is None:
            self._handle_method(method, table)
        else:
            size = DEFERRED_TABLE_FACTOR * len(table)
            method_id = (method.index >> 16, method.index & 0xFFFF)
            self._defer(size, method_id, partial(self._handle_method, method, table))

    def _handle_method(self, method: Method, table: bytes) -> None:
        if isinstance(method, commands.Channel.Close):
            self.connection.close_channel(self.number)
        elif not self.closed:
            try:
                self._dispatch(method, table)
            except BrokerError as error:
                self.connection.refuse(self.number, error)

    def _dispatch(self, method: Method, table: bytes) -> None:
        if self._has_unsynced_acks and method.synchronous:
            # A synchronous answer tells the client that its acks are safe.
            self._has_unsynced_acks = False
            self.wait_for_commit(partial(self._dispatch, method, table))
            return
        handler = _HANDLERS.get(type(method))
        if handler is not None:
            handler(self, method)
        elif self.topology.waits_for_lease(method):
            self.wait_for_commit(partial(self._dispatch, method, table))
        else:
            with self.acting():
                self.topology.handle(method, table)
            if not self.closed:
                self.flow.stop_if_over_budget()

    def acting(self) -> AbstractContextManager[None]:
        """Events of changes made in this context name the channel's user."""
        return self.broker.events.actor.acting_as(self.connection.user.name)

    def reply(
        self, method: Method, durable: bool = False, check: Callable[[], None] = lambda: None
    ) -> None:
        """Answer now. If `durable`, answer when everything done so far is on disk, unless `check`
        raises an error then."""
        self.send_reply(encode_method(self.number, method), durable, check)

    def send_reply(
        self, frame: bytes, durable: bool, check: Callable[[], None] = lambda: None
    ) -> None:
        def send() -> None:
            check()
            self.connection.send(frame)

        if durable and self.broker.store.batch_number > self.broker.commit_waiters.last_committed:
            self.wait_for_commit(send)
        else:
            self.connection.send(frame)

    def notify(self, frame: bytes) -> None:
        """Send an unsolicited frame, after the pending reply if there is one."""
        if self._notices is None:
            self.connection.send(frame)
        else:
            self._notices.append(frame)

    @contextmanager
    def collecting_notices(self) -> Iterator[list[bytes]]:
        """In this context, collect unsolicited frames instead of sending them."""
        notices: list[bytes] = []
        self._notices = notices
        try:
            yield notices
        finally:
            self._notices = None

    # Waiting for the disk ----------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        return self._deferred is not None

    def begin_waiting(self) -> None:
        """Defer all methods from now on."""
        if self._deferred is None:
            self._deferred = deque()

    def wait_for_commit(self, then: Callable[[], None]) -> None:
        """Defer all methods until everything done so far is on disk, then call `then`.

        If the disk is full, acks, definitions and transactions join the next batch.
        """
        self.begin_waiting()
        self.broker.commit_waiters.when_durable(
            partial(self.resume, then), partial(self.resume, self.raise_store_failed), sync=True
        )

    def raise_store_failed(self) -> None:
        raise BrokerError(self.broker.alarms.reason)

    def _defer(self, size: int, method: tuple[int, int], call: Callable[[], None]) -> None:
        """Run `call` when the channel no longer waits; an error in it names `method`."""
        assert self._deferred is not None
        self._deferred.append(partial(self._run_deferred, method, call))
        self._deferred_bytes += self.flow.add_deferred(size)

    def _run_deferred(self, method: tuple[int, int], call: Callable[[], None]) -> None:
        self.connection.wire.attribute_errors_to(method)
        call()

    def resume(self, then: Callable[[], None]) -> None:
        """The wait is over: call `then`, then run the deferred methods."""
        deferred, self._deferred = self._deferred, None
        if not self.closed:
            self.connection.run(self.number, then)
            self._work_off(deferred, at_least=0)

    def _enqueue_reader(self, deferred: deque[Callable[[], None]]) -> None:
        self._deferred, self._is_reader_queued = deferred, True
        self.flow.enqueue_reader(self._run_next_deferred)

    def _run_next_deferred(self) -> None:
        """The scheduler calls this for a waiting channel: run at least one deferred method."""
        if self._is_reader_queued and not self.closed:
            self._is_reader_queued = False
            deferred, self._deferred = self._deferred, None
            self._work_off(deferred, at_least=1)

    def run_deferred_to_end(self) -> None:
        """The peer has disconnected: run deferred methods that do not wait for the disk."""
        while self._is_reader_queued and not self.closed:
            self._run_next_deferred()

    def _work_off(self, deferred: deque[Callable[[], None]] | None, at_least: int) -> None:
        """Run deferred methods within the budget of this tick, or until one has to wait."""
        for count in range(METHODS_AT_ONCE):
            if not deferred or self._deferred is not None:
                break
            if count >= at_least and not self.flow.take_read_budget():
                break
            self.connection.run(self.number, deferred.popleft())
        if deferred and not self.closed:
            if self._deferred is None:  # the budget of this tick is used up
                self._enqueue_reader(deferred)
            else:
                self._deferred.extend(deferred)
        elif self._deferred is None:
            self._release_deferred()
            self.connection.on_channel_idle()

    def _release_deferred(self) -> None:
        self.flow.release_deferred(self._deferred_bytes)
        self._deferred_bytes = 0

    # Publishing --------------------------------------------------------------------------------

    def on_publish(self, publish: Publish, run: Run) -> None:
        if self.closed:
            return  # deferred behind a method that closed the channel
        plan = publish.plan
        try:
            if self._deferred is not None:
                self._defer(run.content_size, _PUBLISH, partial(self.on_publish, publish, run))
            elif (
                not isinstance(plan, Plan)
                or plan.version != self.vhost.version
                or plan.permissions_revision != self.broker.users.revision
                or run.scan.needs_validation
            ):
                self._publish(publish, run)
            elif self.transaction is not None or not plan.targets or run.large_body is not None:
                self._publish_planned(publish, plan, run)
            else:
                run.time_ms, run.origin = self.flow.now_ms, self._origin or self.origin()
                self.published += len(run)
                self.broker.enqueue(plan, run, self.confirms)
        except BrokerError as error:
            self.connection.refuse(self.number, error)
        if not self.flow.publishes:
            self.connection.on_first_publish()

    def _publish(self, publish: Publish, run: Run) -> None:
        """Find the route. If it has to be found for each message, leave the rest to later ticks."""
        (first,) = run.make_messages(slice(0, 1))
        plan, message = self._plan(publish, first)
        is_reusable = plan.reusable and not message.scan.needs_validation
        if is_reusable:
            publish.plan = plan
            publish.effort = 1 + len(plan.targets) // QUEUES_PER_EFFORT
            self.connection.wire.publish_cache.add_plan(plan.version, len(plan.targets))
        else:
            publish.plan, publish.effort = None, 0
        self.flow.stop_if_over_budget()
        if message is first and (is_reusable or len(run) == 1):
            self._publish_planned(publish, plan, run)
            return
        self._publish_planned(publish, plan, Run.of([message]))
        if len(run) > 1:
            rest = run.copy(slice(1, len(run)))
            self._enqueue_reader(deque([partial(self.on_publish, publish, rest)]))

    def _publish_planned(self, publish: Publish, plan: Plan, run: Run) -> None:
        body = run.large_body
        if self.transaction is not None:
            self.transaction.publish(publish, plan, run)
        elif body is not None and needs_parts(self.broker, plan, run.messages[0]):
            self._store_body(publish.mandatory, plan, run, body)
        else:
            self.enqueue(publish.mandatory, plan, run)

    def _store_body(self, mandatory: bool, plan: Plan, run: Run, body: LargeBody) -> None:
        """Enqueue a message when its large body is stored; later methods wait meanwhile."""

        def on_stored() -> None:
            current = self.vhost.drop_deleted_targets(plan)
            if self.closed:  # the client has left, but the message was published before
                run.time_ms, run.origin = self.broker.clock.wall_ms(), self._origin
                self.broker.enqueue(current, run)
            else:
                self.resume(partial(self.enqueue, mandatory, current, run))

        def refuse() -> None:
            if self.confirms is not None:
                self.confirms.rejected()

        self.begin_waiting()
        self._deferred_bytes += self.flow.add_deferred(len(body))
        self._origin = self._origin or self.origin()
        store_parts(self.broker, body, on_stored, partial(self.resume, refuse))

    def _plan(self, publish: Publish, message: Message) -> tuple[Plan, Message]:
        """Check permissions and properties, and ask the virtual host for the routing plan.

        Needed for the first message to an address, and for messages whose properties matter: it
        refuses what is not supported, checks user-id and expiration, replaces the direct reply-to
        address, and reads CC and BCC.
        """
        address, vhost, connection = publish.address, self.vhost, self.connection
        if publish.immediate:
            raise NotImplementedHere("immediate=true")
        self._authorize_write(address.exchange)
        exchange = vhost.exchange(address.exchange)
        require_not_internal(exchange, vhost.name)
        check_user_id_and_expiration(message.scan, connection.user)
        if message.scan.reply_to == DIRECT_REPLY_TO:
            message = self._with_reply_queue(message)
        headers = message.headers()
        extra_keys = cc_and_bcc_keys(headers)
        self.authorize_topic(Action.PUBLISH, exchange, (address.routing_key, *extra_keys))
        message = without_bcc(message, headers)
        plan = vhost.plan(address, extra_keys, headers, self.broker.users.revision)
        require_record_keys(address.exchange, plan.targets)
        if vhost.tracing:
            publisher = {
                "connection": connection.name,
                "channel": self.number,
                "user": connection.user.name,
            }
            firehose.on_published(self.broker, vhost, plan, message, publisher)
        return plan, message

    def _with_reply_queue(self, message: Message) -> Message:
        if self._reply_consumer is None:
            raise PreconditionFailed("fast reply consumer does not exist")
        return message.with_properties(
            replace_property(message.properties, "reply_to", self._reply_consumer.queue.name)
        )

    def enqueue(self, mandatory: bool, plan: Plan, run: Run) -> None:
        """Enqueue messages, return them if they are unroutable, and note what to confirm."""
        run.time_ms = self.flow.now_ms
        run.origin = self._origin or self.origin()
        self.published += len(run)
        self.broker.enqueue(plan, run, self.confirms)
        if not plan.targets:
            self._return_or_drop(mandatory, run)

    def _return_or_drop(self, mandatory: bool, run: Run) -> None:
        count = len(run)
        if not mandatory:
            self.dropped += count
            self.broker.counters.dropped_unroutable += count
            self.vhost.counters.dropped_unroutable += count
            return
        self.returned += count
        self.broker.counters.returned_unroutable += count
        self.vhost.counters.returned_unroutable += count
        head = encode_return(self.number, ReplyCode.NO_ROUTE, "NO_ROUTE", run.address)
        for message in run.messages:
            self.connection.send(head)
            self.connection.send(message.content(self.number, self.connection.frame_max))

    def origin(self) -> int:
        """The id of this channel in the history, created when it is first needed."""
        if not self._origin:
            self._origin = self._save_origin(OriginKind.PUBLISHER)
        return self._origin

    def _save_origin(self, kind: OriginKind, consumer_tag: str = "") -> int:
        connection = self.connection
        origin = Origin(
            id=next(self.broker.origin_ids),
            kind=kind,
            vhost=self.vhost.name,
            user=connection.user.name,
            connection=connection.name,
            channel=self.number,
            consumer_tag=consumer_tag,
            created_ms=self.flow.now_ms,
        )
        self.broker.store.save(origin)
        return origin.id

    # Confirms and transactions -----------------------------------------------------------------

    def _on_confirm_select(self, method: Any) -> None:
        if self.transaction is not None:
            raise PreconditionFailed("cannot switch from tx to confirm mode")
        if self.confirms is None:
            self.confirms = Confirms(
                self.number, partial(self.connection.mark_confirms_ready, self)
            )
        if not method.nowait:
            self.reply(commands.Confirm.SelectOk())

    def _on_tx_select(self, _method: Any) -> None:
        if self.confirms is not None:
            raise PreconditionFailed("cannot switch from confirm to tx mode")
        if self.transaction is None:
            self.transaction = Transaction(self.broker)
        self.reply(commands.Tx.SelectOk())

    def _on_tx_commit(self, _method: Any) -> None:
        if self.transaction is None:
            raise PreconditionFailed("channel is not transactional")
        runs = self.transaction.runs_to_stage()
        if runs and self.broker.store.state is not StoreState.FAILED:
            self._stage_commit(runs)
        else:
            self._commit_transaction()

    def _stage_commit(self, runs: list[Run]) -> None:
        """Store the content of a large transaction, then commit it; later methods wait."""

        def commit(staged: Sequence[StagedRuns] = ()) -> None:
            for one in staged if self.closed else ():
                self.broker.store.discard(one)
            call = partial(self._commit_transaction, staged)
            self.resume(partial(self._run_deferred, _TX_COMMIT, call))

        self.begin_waiting()
        # If the disk is full, the whole transaction joins the next batch that can be written.
        stage_runs(self.broker, runs, on_staged=commit, on_failed=commit)

    def _commit_transaction(self, staged: Sequence[StagedRuns] = ()) -> None:
        assert self.transaction is not None
        if self.broker.store.state is StoreState.FAILED:
            self.raise_store_failed()
        self.transaction.commit(self, staged)
        self.reply(commands.Tx.CommitOk(), durable=True)

    def _on_tx_rollback(self, _method: Any) -> None:
        if self.transaction is None:
            raise PreconditionFailed("channel is not transactional")
        self.unacked.restore(self.transaction.rollback())
        self.reply(commands.Tx.RollbackOk())

    def _on_flow(self, method: Any) -> None:
        if not method.active:
            raise NotImplementedHere("active=false is not implemented")
        self.reply(commands.Channel.FlowOk(True))

    # Consuming ---------------------------------------------------------------------------------

    def _on_consume(self, method: Any) -> None:
        tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if tag in self.consumers or self._is_reply_consumer(tag):
            raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
        if method.queue == DIRECT_REPLY_TO:
            self._start_reply_consumer(tag, method.no_ack)
        else:
            queue = self.topology.queue_for(Action.CONSUME, method.queue)
            self._start_consumer(tag, queue, method)
        if not method.nowait:
            self.connection.send(encode_method(self.number, commands.Basic.ConsumeOk(tag)))

    def _start_consumer(self, tag: str, queue: Queue, method: Any) -> None:
        arguments = dict(method.arguments or {})
        priority = arguments.get("x-priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise PreconditionFailed(f"invalid arg 'x-priority': {priority!r} is not an integer")
        if OFFSET_ARGUMENT in arguments and queue.spec.kind != "stream":
            raise PreconditionFailed(
                f"invalid arg '{OFFSET_ARGUMENT}' for queue '{queue.name}' in vhost "
                f"'{self.vhost.name}' of queue type rabbit_{queue.spec.kind}_queue"
            )
        validate_timeout(arguments.get(CONSUMER_TIMEOUT, 0))
        consumer = AmqpConsumer(self, tag, queue, method.no_ack, method.exclusive, arguments)
        consumer.prefetch = self._prefetch
        if queue.spec.durable:
            consumer.actor = self._save_origin(OriginKind.CONSUMER, tag)
        try:
            queue.add_consumer(consumer)
        except AccessRefused as error:
            place = f"queue '{queue.name}' in vhost '{self.vhost.name}'"
            raise AccessRefused(f"{place} {error.explanation}") from error
        self.consumers[tag] = consumer
        with self.acting():
            facts = {
                "ack_required": not method.no_ack,
                "exclusive": method.exclusive,
                "prefetch_count": self._prefetch,
                "arguments": arguments,
            }
            self.broker.events.consumer({**self._consumer_facts(consumer), **facts}, "created")

    def _consumer_facts(self, consumer: AmqpConsumer) -> dict[str, Any]:
        """What events say about a consumer."""
        return {
            "consumer_tag": consumer.tag,
            "queue": consumer.queue.name,
            "channel": self.name,
            "vhost": self.vhost.name,
        }

    def _on_cancel(self, method: Any) -> None:
        consumer = self.consumers.get(method.consumer_tag)
        if consumer is not None:
            if consumer.credit() > 0:
                consumer.queue.deliver_pending()
            with self.acting():
                self.remove_consumer(consumer)
                self.vhost.remove_consumer(consumer.queue, consumer)
        elif self._is_reply_consumer(method.consumer_tag):
            self._end_reply_consumer()
        if not method.nowait:
            self.reply(commands.Basic.CancelOk(method.consumer_tag))

    def remove_consumer(self, consumer: AmqpConsumer) -> None:
        self.consumers.pop(consumer.tag, None)
        self.broker.events.consumer(self._consumer_facts(consumer), "deleted")

    def _is_reply_consumer(self, tag: str) -> bool:
        return self._reply_consumer is not None and self._reply_consumer.tag == tag

    def _start_reply_consumer(self, tag: str, no_ack: bool) -> None:
        """Direct reply-to: one consumer at most, on a queue whose name cannot be guessed.

        The queue exists as long as the consumer does.
        """
        if not no_ack:
            raise PreconditionFailed("reply consumer cannot acknowledge")
        if self._reply_consumer is not None:
            raise PreconditionFailed("reply consumer already set")
        queue = self.vhost.add_reply_queue()
        self._reply_consumer = ReplyConsumer(self, tag, queue, True, False, {})
        queue.add_consumer(self._reply_consumer)

    def _end_reply_consumer(self) -> None:
        consumer, self._reply_consumer = self._reply_consumer, None
        if consumer is not None:
            self.vhost.remove_reply_queue(consumer.queue)
            consumer.queue.remove_consumer(consumer)

    def mark_queues_ready(self) -> None:
        """Consumers of this channel have credit again."""
        for consumer in self.consumers.values():
            consumer.queue.on_credit(consumer)
        if self._reply_consumer is not None:
            self.broker.scheduler.mark_ready(self._reply_consumer.queue)

    def on_served(self, consumer: AmqpConsumer) -> None:
        """Its deliveries used the channel's credit: other consumers of the channel are next."""
        if self.consumers.pop(consumer.tag, None) is not None:
            self.consumers[consumer.tag] = consumer

    def _on_qos(self, method: Any) -> None:
        if method.prefetch_size:
            raise NotImplementedHere(f"prefetch_size!=0 ({method.prefetch_size})")
        for queue in {consumer.queue for consumer in self.consumers.values()}:
            queue.deliver_pending()  # with the limit so far
        if method.global_:
            self.global_prefetch = method.prefetch_count
        else:
            # As in RabbitMQ, this removes the limit of the whole channel. Unlike there, existing
            # consumers get the new limit, too: kombu relies on it.
            self._prefetch, self.global_prefetch = method.prefetch_count, 0
            for consumer in self.consumers.values():
                consumer.prefetch = method.prefetch_count
        self.reply(commands.Basic.QosOk())
        for consumer in self.consumers.values():
            consumer.queue.on_credit(consumer)

    def _on_get(self, method: Any) -> None:
        """basic.get. If it has to wait, it starts over, because permissions and queues change."""
        queue = self.topology.queue_for(Action.GET, method.queue)
        retry = partial(self.resume, partial(self._on_get, method))
        # A request is small, but its answer may be large.
        if self.flow.has_unread_output or self.flow.unsent:
            self.begin_waiting()
            self.flow.when_drained(retry)
            return
        delivery = queue.basic_get(self.origin() if queue.spec.durable else 0, method.no_ack)
        if delivery is not None:
            self._send_get_ok(delivery, method.no_ack)
        elif queue.ready_count and not queue.blocks_get:
            # There is a message, but it has to be read from disk, or its delivery committed.
            if self.broker.store.state is StoreState.FAILED:
                self.raise_store_failed()
            self.begin_waiting()
            queue.when_readable(retry)
            self.broker.scheduler.schedule()
        else:
            self.broker.counters.get_empty += 1
            self.vhost.counters.get_empty += 1
            self.connection.send(encode_method(self.number, commands.Basic.GetEmpty()))

    def _send_get_ok(self, delivery: Delivery, no_ack: bool) -> None:
        tag = self.last_tag = self.last_tag + 1
        (entry,), count = delivery.entries(), delivery.queue.ready_count
        self.deliveries.got(entry, no_ack)
        if not no_ack:
            delivery.first_tag = tag
            self.unacked.add(delivery, tag)
        message = entry.message
        head = encode_get_ok(self.number, tag, entry.redelivered, message.address, count)
        self.connection.send(head)
        self.connection.send(message.content(self.number, self.connection.frame_max))
        self.broker.scheduler.schedule()

    # Settling ----------------------------------------------------------------------------------

    def on_ack(self, tags: list[int], multiple: bool) -> None:
        """basic.ack from the wire; several tags are acknowledged one by one."""
        if self.closed:
            return  # deferred behind a method that closed the channel
        try:
            if self._deferred is not None:
                self._defer(64 * len(tags), _ACK, partial(self.on_ack, tags, multiple))
            elif multiple:
                self._settle_tag(tags[0], True, Outcome.ACK)
                self.flow.stop_if_over_budget()  # it may have settled thousands of deliveries
            else:
                deliveries, unknown = self.unacked.take_each(tags)
                if len(deliveries) == 1 and self.transaction is None:
                    self._settle(deliveries, Outcome.ACK)
                else:
                    self._settle_taken(deliveries, Outcome.ACK)
                if unknown is not None:
                    raise PreconditionFailed(f"unknown delivery tag {unknown}")
        except BrokerError as error:
            self.connection.refuse(self.number, error)

    def _on_ack(self, method: Any) -> None:
        self.on_ack([method.delivery_tag], method.multiple)

    def _on_reject(self, method: Any) -> None:
        outcome = Outcome.REQUEUE if method.requeue else Outcome.REJECT
        self._settle_tag(method.delivery_tag, False, outcome)

    def _on_nack(self, method: Any) -> None:
        outcome = Outcome.REQUEUE if method.requeue else Outcome.NACK
        self._settle_tag(method.delivery_tag, method.multiple, outcome)

    def _settle_tag(self, tag: int, multiple: bool, outcome: Outcome) -> None:
        unacked = self.unacked
        if not multiple:
            deliveries = unacked.take(tag, tag)
        elif tag == 0:
            deliveries = unacked.take_all()
        else:
            deliveries = unacked.take(0, tag) if tag in unacked else []
        if not deliveries and (tag or not multiple):
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        self._settle_taken(deliveries, outcome)

    def _settle_taken(self, deliveries: list[Delivery], outcome: Outcome) -> None:
        """Settle now, or at the commit of the transaction."""
        if self.transaction is not None:
            self.transaction.settle(deliveries, outcome)
        else:
            self.settle_all(deliveries, outcome)

    def settle_all(self, deliveries: list[Delivery], outcome: Outcome) -> None:
        for group in group_by_queue(deliveries):
            self._settle(group, outcome)

    def _settle(self, deliveries: list[Delivery], outcome: Outcome) -> None:
        """Settle deliveries of one queue to one consumer."""
        queue, consumer, count = deliveries[0].queue, deliveries[0].consumer, 0
        for delivery in deliveries:
            count += delivery.count
        if outcome is Outcome.ACK:
            self.acknowledged += count
        if queue.spec.durable:
            self._has_unsynced_acks = True
        actor = self._origin
        if isinstance(consumer, AmqpConsumer):
            consumer.inflight -= count
            self.inflight -= count
            actor = consumer.actor
        queue.settle(deliveries, outcome, actor)
        if self.global_prefetch:
            for other in self.consumers.values():  # the one that was served last comes last
                other.queue.on_credit(other)
        self.broker.scheduler.mark_ready(queue)

    def _on_recover(self, method: Any) -> None:
        if not method.requeue:
            raise NotImplementedHere("requeue=false is not implemented")
        if isinstance(method, commands.Basic.Recover):
            self.reply(commands.Basic.RecoverOk())
        self.settle_all(self.unacked.take_all(), Outcome.REQUEUE)

    # Permissions -------------------------------------------------------------------------------

    def _authorize_write(self, exchange: str) -> None:
        """Like `authorize`, with a cache: needed for each message without a reusable plan."""
        revision = self.broker.users.revision
        if self._write_granted.get(exchange) != revision:
            self.authorize(Action.PUBLISH, exchange=exchange)
            self._write_granted[exchange] = revision

    def authorize(self, action: Action, **names: str) -> None:
        self.broker.users.authorize(self.connection.user.name, self.vhost.name, action, **names)

    def authorize_topic(self, action: Action, exchange: Exchange, keys: Iterable[str]) -> None:
        user, vhost = self.connection.user.name, self.vhost.name
        self.broker.users.authorize_topic(user, vhost, action, exchange, keys)

    def recheck_permissions(self) -> None:
        """Cancel consumers that may no longer read. If the client does not understand
        basic.cancel, close the channel.

        Messages that were delivered before can still be settled.
        """
        for consumer in list(self.consumers.values()):
            try:
                self.authorize(Action.CONSUME, queue=consumer.queue.name)
            except AccessRefused as error:
                if not self.connection.wants_cancel_notify:
                    refuse = partial(self.connection.refuse, self.number, error)
                    self.connection.run(self.number, refuse)
                    return
                self.vhost.remove_consumer(consumer.queue, consumer)
                consumer.cancelled()

    # Closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove consumers and requeue unacknowledged messages. Further calls do nothing."""
        if self.closed:
            return
        self.closed = True
        cleanup = Cleanup(f"{self.connection.name} channel {self.number}")
        for consumer in list(self.consumers.values()):
            cleanup.run(self.remove_consumer, consumer)
            cleanup.run(self.vhost.remove_consumer, consumer.queue, consumer)
        cleanup.run(self._end_reply_consumer)
        for deliveries in group_by_queue(self._take_all_unacked()):
            cleanup.run(self._settle, deliveries, Outcome.REQUEUE)
        if self._deferred is not None:
            self._deferred.clear()
        cleanup.run(self._release_deferred)
        self.confirms = None
        del self.topology  # break the reference cycle, so that the channel is freed now

    def _take_all_unacked(self) -> list[Delivery]:
        deliveries = self.unacked.take_all()
        if self.transaction is not None:
            deliveries += self.transaction.settled_deliveries()
            self.transaction.discard_publishes()
            self.transaction = None
        return deliveries


def _ignore(_channel: Channel, _method: Any) -> None:
    """An answer of the client that needs no handling."""


_HANDLERS: dict[type[Method], Callable[[Channel, Any], None]] = {
    commands.Basic.Consume: Channel._on_consume,
    commands.Basic.Cancel: Channel._on_cancel,
    commands.Basic.CancelOk: _ignore,
    commands.Basic.Qos: Channel._on_qos,
    commands.Basic.Get: Channel._on_get,
    commands.Confirm.Select: Channel._on_confirm_select,
    commands.Tx.Select: Channel._on_tx_select,
    commands.Tx.Commit: Channel._on_tx_commit,
    commands.Tx.Rollback: Channel._on_tx_rollback,
    commands.Channel.Flow: Channel._on_flow,
    commands.Channel.FlowOk: _ignore,
    commands.Basic.Ack: Channel._on_ack,
    commands.Basic.Reject: Channel._on_reject,
    commands.Basic.Nack: Channel._on_nack,
    commands.Basic.Recover: Channel._on_recover,
    commands.Basic.RecoverAsync: Channel._on_recover,
}
