"""A channel: its state, publishing and settling.

Topology is in `declare.py`, consumers and polling in `consuming.py`, confirms and transactions in
`modes.py`.

A channel handles one method after the other. Where an answer must wait for disk (a durable
declaration, a commit, anything after acks of durable messages) the channel is *held*: what comes
in meanwhile waits in `inbox`, and is handled in order when the batch is on disk. Nothing on the
publish path ever holds; confirms go through their own ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from amqp_server import consuming, modes
from amqp_server.codec import (
    Method,
    Publish,
    commands,
    encode_method,
    encode_return,
)
from amqp_server.confirms import Confirms
from amqp_server.consumer import AmqpConsumer, Unacked, by_queue
from amqp_server.declare import Declarations
from amqp_server.describe import consumer_facts, count_channel, describe_channel
from amqp_server.ending import Ending
from amqp_server.publishing import careful_plan
from amqp_server.replies import Replies
from amqp_server.transaction import Transaction
from amqp_server.wire import METHODS_AT_ONCE
from exchange import Exchange
from leveret.broker import Action, Plan
from leveret.model.errors import (
    AccessRefused,
    BrokerError,
    NotImplementedHere,
    PreconditionFailed,
    ReplyCode,
)
from leveret.model.history import OriginKind
from leveret.model.message import Message
from leveret.model.store import Origin, StoreState, Synced
from queues import Enqueued, Entry, HeldQueue, Outcome
from queues.counters import QueueCounters

if TYPE_CHECKING:
    from amqp_server.session import Session

Inbox = deque[Callable[[], None]]

QUEUES_PER_EFFORT = 8
"""A message to so many takes about as long again as reading it does."""


class Channel:
    describe = describe_channel
    counts = count_channel

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.broker = session.broker
        self.vhost = session.vhost
        self.number = number
        self.unacked: dict[int, Unacked] = {}
        self.last_tag = self.settled_to = 0
        """The last tag given, and one up to which none is unacked."""
        self.consumers: dict[str, AmqpConsumer] = {}
        self.prefetch = 0
        self.global_prefetch = 0
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None
        self.replies = Replies(self)
        self.inbox: Inbox | None = None
        self.is_in_line = False
        self.put_off = 0
        self.late: list[bytes] | None = None
        self.published = self.acknowledged = self.returned = self.dropped = 0
        self.handed = QueueCounters()
        self.closed = False
        self._origin = 0
        self._may_write: dict[str, int] = {}
        self._owes_disk = False
        self.declarations = Declarations(self)

    def __repr__(self) -> str:
        return (
            f"<Channel {self.number} unacked={len(self.unacked)} consumers={len(self.consumers)}>"
        )

    # Publishing --------------------------------------------------------------------------------

    def on_publish(self, publish: Publish, messages: list[Message]) -> None:
        """A run to one address is routed at once, unless something about it needs judging."""
        if self.closed:
            return  # it waited behind what closed the channel
        if len(messages) == 1:
            self._publish_one(publish, messages[0])
            return
        plan = publish.plan
        if (
            isinstance(plan, Plan)
            and plan.takes_runs
            and plan.version == self.vhost.version
            and plan.rights == self.broker.users.revision
            and self.transaction is None
        ):
            self._route_run(plan, messages)
        else:
            self._publish_each(publish, messages)

    def _publish_each(self, publish: Publish, messages: list[Message]) -> None:
        """The way they all go may have become one that each has to find for itself."""
        for index, message in enumerate(messages, 1):
            self._publish_one(publish, message)
            if publish.plan is None and index < len(messages):
                self._wait_in_line(deque([partial(self.on_publish, publish, messages[index:])]))
                return

    def _route_run(self, plan: Plan, messages: list[Message]) -> None:
        self.published += len(messages)
        origin = self._origin or self.origin()
        answers = self.broker.route_run(plan, messages, self.session.now_ms, origin)
        if self.confirms is not None:
            self._confirm_run(self.confirms, messages, answers or [Enqueued.TAKEN] * len(messages))

    def _confirm_run(
        self, confirms: Confirms, messages: list[Message], answers: list[Enqueued]
    ) -> None:
        waits = [
            answer is Enqueued.WAITING or (message.stored and message.scan.persistent)
            for message, answer in zip(messages, answers, strict=True)
        ]
        if Enqueued.REJECTED in answers or (any(waits) and not all(waits)):
            for message, answer in zip(messages, answers, strict=True):
                self._confirm(message, answer)
        elif confirms.accepted(self.broker.store.mark if waits[0] else 0, len(messages)):
            self.session.confirm(self)

    def _publish_one(self, publish: Publish, message: Message) -> None:
        plan = publish.plan
        if (
            not isinstance(plan, Plan)
            or plan.version != self.vhost.version
            or plan.rights != self.broker.users.revision
            or not plan.reusable
            or message.scan.needs_care
        ):
            plan, message = careful_plan(self, publish, message)
            if plan.reusable and not message.scan.needs_care:
                publish.plan = plan
                publish.effort = 1 + len(plan.queues) // QUEUES_PER_EFFORT
                self.session.wire.known.leads_to(plan.version, len(plan.queues))
            else:
                publish.plan, publish.effort = None, 0
            if not self._has_time():
                self.session.wire.enough()
        if self.transaction is not None:
            self.transaction.publish(publish, plan, message)
        else:
            self.route(publish.mandatory, plan, message)

    def _has_time(self) -> bool:
        return self.broker.turn.has_time(self.broker.clock.monotonic())

    def route(self, mandatory: bool, plan: Plan, message: Message) -> None:
        """Hand a message to its queues; return what was unroutable, confirm what was taken."""
        message.time_ms = self.session.now_ms
        message.origin = self._origin or self.origin()
        self.published += 1
        taken = self.broker.route(plan, message)
        if not plan.queues:
            self._unroutable(mandatory, message)
        if self.confirms is not None:
            self._confirm(message, taken)

    def _confirm(self, message: Message, taken: Enqueued) -> None:
        confirms = self.confirms
        assert confirms is not None
        if taken is Enqueued.REJECTED:
            something = confirms.refused()
        else:
            waits = taken is Enqueued.WAITING or (message.stored and message.scan.persistent)
            something = confirms.accepted(self.broker.store.mark if waits else 0)
        if something:
            self.session.confirm(self)

    def _unroutable(self, mandatory: bool, message: Message) -> None:
        if not mandatory:
            self.dropped += 1
            self.broker.counters.dropped_unroutable += 1
            self.vhost.counters.dropped_unroutable += 1
            return
        self.returned += 1
        self.broker.counters.returned_unroutable += 1
        self.vhost.counters.returned_unroutable += 1
        head = encode_return(self.number, ReplyCode.NO_ROUTE, "NO_ROUTE", message.address)
        self.session.send(head + message.content(self.number, self.session.frame_max))

    def origin(self) -> int:
        """This channel's name in the history, made at first need."""
        if not self._origin:
            self._origin = self.save_origin(OriginKind.PUBLISHER)
        return self._origin

    def save_origin(self, kind: OriginKind, consumer_tag: str = "") -> int:
        session = self.session
        origin = Origin(
            id=next(self.broker.origin_ids),
            kind=kind,
            vhost=self.vhost.name,
            user=session.user.name,
            connection=session.name,
            channel=self.number,
            consumer_tag=consumer_tag,
            created_ms=session.now_ms,
        )
        self.broker.store.save(origin)
        return origin.id

    # Waiting for disk --------------------------------------------------------------------------

    def hold(self, then: Callable[[], None]) -> None:
        """Handle nothing more on this channel until all that was done is on disk, then go on."""
        if self.inbox is None:
            self.inbox = deque()
        broker = self.broker
        broker.store.save(Synced())
        broker.turn.schedule()
        broker.commits.after(
            broker.store.mark, lambda: self.go_on(then), lambda: self._not_durable(then)
        )

    def _not_durable(self, then: Callable[[], None]) -> None:
        """The disk is full: acks, definitions and transactions join the next batch."""
        store = self.broker.store
        if store.state is StoreState.FAILED:
            self.go_on(self.give_up)
        else:
            self.hold(then)

    def give_up(self) -> None:
        raise BrokerError(self.broker.alarms.reason)

    @property
    def is_held(self) -> bool:
        return self.inbox is not None

    def go_on(self, then: Callable[[], None]) -> None:
        inbox, self.inbox = self.inbox, None
        if not self.closed:
            self.session.run(self.number, then)
            self._work_off(inbox, at_least=0)

    def _wait_in_line(self, inbox: Inbox) -> None:
        self.inbox, self.is_in_line = inbox, True
        self.broker.turn.wait_in_line(self.next_portion)

    def next_portion(self) -> None:
        """It is this channel's turn, or its peer has gone: whatever time there is, it gets on."""
        if self.is_in_line and not self.closed:
            self.is_in_line = False
            inbox, self.inbox = self.inbox, None
            self._work_off(inbox, at_least=1)

    def _work_off(self, inbox: Inbox | None, at_least: int) -> None:
        for count in range(METHODS_AT_ONCE):
            if not inbox or self.is_held or (count >= at_least and not self._has_time()):
                break
            self.session.run(self.number, inbox.popleft())
        if inbox:
            if self.inbox is None:  # enough for this turn
                self._wait_in_line(inbox)
            else:
                self.inbox.extend(inbox)
            return
        if self.inbox is None:
            self.session.putting_off.took_up(self)
            self.session.caught_up()

    def reply(
        self, method: Method, durable: bool = False, check: Callable[[], None] = lambda: None
    ) -> None:
        """Answer now, or when everything done so far is on disk and `check` does not object."""
        self.answer(encode_method(self.number, method), durable, check)

    def answer(self, frame: bytes, durable: bool, check: Callable[[], None] = lambda: None) -> None:
        def send() -> None:
            check()
            self.session.send(frame)

        if durable and self.broker.store.mark > self.broker.commits.committed:
            self.hold(send)
        else:
            self.session.send(frame)

    def on_method(self, method: Method, table: bytes) -> None:
        if self._owes_disk and method.synchronous:
            # A synchronous answer tells the client that its acks are safe.
            self._owes_disk = False
            self.hold(lambda: self.on_method(method, table))
            return
        handler = _HANDLERS.get(type(method))
        if handler is not None:
            handler(self, method)
        else:
            with self.acting():
                self.declarations.handle(method, table)
            if not self.closed and not self._has_time():
                self.session.wire.enough()

    # Consuming ---------------------------------------------------------------------------------

    def notify(self, frame: bytes) -> None:
        """Say something nobody asked for: at once, or behind the answer being made."""
        if self.late is None:
            self.session.send(frame)
        else:
            self.late.append(frame)

    def forget_consumer(self, consumer: AmqpConsumer) -> None:
        self.consumers.pop(consumer.tag, None)
        self.broker.events.consumer(consumer_facts(self, consumer), "deleted")

    def acting(self) -> AbstractContextManager[None]:
        """Events of what is done within name this channel's user."""
        return self.broker.events.acting.of(self.session.user.name)

    # Settling ----------------------------------------------------------------------------------

    def on_ack(self, tags: list[int], multiple: bool) -> None:
        if multiple or self.transaction is not None:
            for tag in tags:
                self._settle_or_defer(tag, multiple, Outcome.ACK)
        else:
            self._ack_run(tags)

    def _ack_run(self, tags: list[int]) -> None:
        """Each alone, as the client sent them, but told to its queue together with the others."""
        chosen: dict[int, Unacked] = {}
        for tag in tags:
            taken = self.unacked.pop(tag, None)
            if taken is None:
                break
            chosen[tag] = taken
        self.settle_all(chosen, Outcome.ACK)
        if len(chosen) < len(tags):
            raise PreconditionFailed(f"unknown delivery tag {tags[len(chosen)]}")

    def _reject(self, method: Any) -> None:
        outcome = Outcome.REQUEUE if method.requeue else Outcome.REJECT
        self._settle_or_defer(method.delivery_tag, False, outcome)

    def _nack(self, method: Any) -> None:
        outcome = Outcome.REQUEUE if method.requeue else Outcome.NACK
        self._settle_or_defer(method.delivery_tag, method.multiple, outcome)

    def _settle_or_defer(self, tag: int, multiple: bool, outcome: Outcome) -> None:
        if not multiple and self.transaction is None:
            taken = self.unacked.pop(tag, None)
            if taken is None:
                raise PreconditionFailed(f"unknown delivery tag {tag}")
            entry, queue, consumer = taken
            self._settle(queue, [entry], consumer, outcome)
            return
        chosen = self._take_unacked(tag, multiple)
        if self.transaction is not None:
            self.transaction.settle(chosen, outcome)
        else:
            self.settle_all(chosen, outcome)

    def _take_unacked(self, tag: int, multiple: bool) -> dict[int, Unacked]:
        unacked = self.unacked
        if multiple and tag == 0:
            chosen = dict(unacked)
            unacked.clear()
            self.settled_to = self.last_tag
            return chosen
        if tag not in unacked:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        if not multiple:
            return {tag: unacked.pop(tag)}
        numbers: Iterable[int] = range(self.settled_to + 1, tag + 1)
        if tag - self.settled_to > len(unacked):  # most have been settled one by one
            numbers = sorted(number for number in unacked if number <= tag)
        chosen = {number: unacked.pop(number) for number in numbers if number in unacked}
        self.settled_to = tag
        return chosen

    def settle_all(self, chosen: dict[int, Unacked], outcome: Outcome) -> None:
        for (queue, consumer), entries in by_queue(chosen).items():
            self._settle(queue, entries, consumer, outcome)

    def _settle(
        self,
        queue: HeldQueue,
        entries: list[Entry],
        consumer: AmqpConsumer | None,
        outcome: Outcome,
    ) -> None:
        if outcome is Outcome.ACK:
            self.acknowledged += len(entries)
        if queue.spec.durable:
            self._owes_disk = True
            self.broker.turn.schedule()
        if consumer is not None:
            consumer.inflight -= len(entries)
        queue.settle(entries, outcome, consumer.actor if consumer is not None else self._origin)
        self.broker.turn.touch(queue)
        if self.global_prefetch:
            for other in self.consumers.values():
                self.broker.turn.touch(other.queue)

    def _recover(self, method: Any) -> None:
        if not method.requeue:
            raise NotImplementedHere("requeue=false is not implemented")
        if isinstance(method, commands.Basic.Recover):
            self.reply(commands.Basic.RecoverOk())
        chosen, self.unacked = self.unacked, {}
        self.settle_all(chosen, Outcome.REQUEUE)

    # Ending ------------------------------------------------------------------------------------

    def require_write(self, exchange: str) -> None:
        """As `demand`, remembered: asked for every message whose route is not known yet."""
        revision = self.broker.users.revision
        if self._may_write.get(exchange) != revision:
            self.demand(Action.PUBLISH, exchange=exchange)
            self._may_write[exchange] = revision

    def demand(self, action: Action, **names: str) -> None:
        self.broker.users.demand(self.session.user.name, self.vhost.name, action, **names)

    def demand_topic(self, action: Action, exchange: Exchange, keys: Iterable[str]) -> None:
        user, vhost = self.session.user.name, self.vhost.name
        self.broker.users.demand_topic(user, vhost, action, exchange, keys)

    def review_rights(self) -> None:
        """Cancel consumers that may no longer read; a client that hears of none loses the channel.

        What they were given stays with them until it is settled.
        """
        for consumer in list(self.consumers.values()):
            try:
                self.demand(Action.CONSUME, queue=consumer.queue.name)
            except AccessRefused as error:
                if not self.session.wants_cancel_notify:
                    self.session.run(self.number, partial(self.session.refuse, self.number, error))
                    return
                self.vhost.leave_queue(consumer.queue, consumer)
                consumer.cancelled()

    def close(self) -> None:
        """Consumers go, unacked messages go back. Calling it twice is free."""
        if self.closed:
            return
        self.closed = True
        ending = Ending(f"{self.session.name} channel {self.number}")
        for consumer in list(self.consumers.values()):
            ending.take(self.forget_consumer, consumer)
            ending.take(self.vhost.leave_queue, consumer.queue, consumer)
        ending.take(self.replies.end)
        for (queue, held_by), entries in by_queue(self._take_back()).items():
            ending.take(self._settle, queue, entries, held_by, Outcome.REQUEUE)
        if self.inbox is not None:
            self.inbox.clear()
        ending.take(self.session.putting_off.took_up, self)
        self.confirms = None
        del self.declarations, self.replies  # no circle: it is freed now

    def _take_back(self) -> dict[int, Unacked]:
        chosen, self.unacked = self.unacked, {}
        if self.transaction is not None:
            chosen = {**self.transaction.held(), **chosen}
            self.transaction.take_publishes()
            self.transaction = None
        return chosen


_HANDLERS: dict[type[Method], Callable[[Channel, Any], None]] = {
    **consuming.HANDLERS,
    **modes.HANDLERS,
    commands.Basic.Ack: lambda channel, m: channel.on_ack([m.delivery_tag], m.multiple),
    commands.Basic.Reject: Channel._reject,
    commands.Basic.Nack: Channel._nack,
    commands.Basic.Recover: Channel._recover,
    commands.Basic.RecoverAsync: Channel._recover,
}
