"""A queue with every feature at once against a model: nothing twice, nothing lost, all in order.

Priorities, TTLs, length and byte limits with each overflow behaviour, delivery limit, single active
consumer, policy changes and dead letters whose target may be full, in any combination and order.
The model predicts which messages stay, are delivered or are dead-lettered, when and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from leveret.model.history import Keep
from leveret.model.message import Address, Message, encode_properties
from leveret.model.run import Run
from leveret.queues.classic.classic_queue import ClassicQueue, QueueCallbacks
from leveret.queues.classic.dead_lettering import RETRY_MS
from leveret.queues.entry import Outcome
from leveret.queues.options import Overflow
from leveret.queues.port import DeathReason, EnqueueResult, Queue
from leveret.queues.spec import QueueSpec
from tests.support.fake_consumer import FakeConsumer
from tests.torture.suites import size_or

ADDRESS = Address.of("", "q")
START_MS = 1_000_000


def maybe(strategy: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.one_of(st.none(), strategy)


@dataclass
class Item:
    id: int
    size: int
    priority: int
    expires_ms: int | None
    delivery_count: int = 0


class FeaturesMachine(RuleBasedStateMachine):
    @initialize(
        ttl=maybe(st.integers(1, 3_000)),
        max_length=maybe(st.integers(0, 4)),
        max_bytes=maybe(st.integers(0, 12)),
        overflow=st.sampled_from(Overflow),
        max_priority=maybe(st.integers(0, 3)),
        limit=maybe(st.integers(0, 2)),
        single=st.booleans(),
        dead_letters=st.booleans(),
    )
    def declare(
        self,
        ttl: int | None,
        max_length: int | None,
        max_bytes: int | None,
        overflow: Overflow,
        max_priority: int | None,
        limit: int | None,
        single: bool,
        dead_letters: bool,
    ) -> None:
        self.now_ms, self.last_id, self.retry_ms = START_MS, 0, 0
        limits = {
            "x-message-ttl": ttl,
            "x-max-length": max_length,
            "x-max-length-bytes": max_bytes,
            "x-overflow": str(overflow),
            "x-max-priority": max_priority,
            "x-delivery-limit": limit,
            "x-single-active-consumer": single,
            "x-dead-letter-exchange": "dlx" if dead_letters else None,
        }
        arguments = {key: value for key, value in limits.items() if value is not None}
        callbacks = QueueCallbacks(dead_letter=self.dead_letter, now_ms=lambda: self.now_ms)
        self.queue = ClassicQueue(QueueSpec("q", False, arguments=arguments), 1, callbacks)
        self.ttl, self.overflow, self.max_priority, self.limit = ttl, overflow, max_priority, limit
        self.own_max_length, self.max_length, self.max_bytes = max_length, max_length, max_bytes
        self.single, self.dead_letters, self.target_is_full = single, dead_letters, False
        self.ready: list[Item] = []
        self.unacked: dict[int, Item] = {}
        self.stuck: list[tuple[DeathReason, Item]] = []
        self.removed = 0
        self.dead_lettered: list[tuple[int, DeathReason]] = []
        self.reported: list[tuple[int, DeathReason]] = []
        self.consumers: list[FakeConsumer] = []
        self.delivered: list[int] = []
        self.unacked_before: dict[int, set[int]] | None = None

    # Called by the queue -----------------------------------------------------------------------

    def dead_letter(self, queue: Queue, messages: Any, reason: DeathReason) -> set[int]:
        if self.target_is_full:
            return {message.id for message in messages}
        self.reported += [(message.id, reason) for message in messages]
        return set()

    # The model ---------------------------------------------------------------------------------

    def dispose(self, items: list[Item], reason: DeathReason) -> None:
        if not self.dead_letters:
            self.removed += len(items)
        elif self.target_is_full and items:
            self.stuck += [(reason, item) for item in items]
            self.retry_ms = self.now_ms + RETRY_MS
        else:
            self.removed += len(items)
            self.dead_lettered += [(item.id, reason) for item in items]

    def insert(self, item: Item) -> None:
        self.ready.append(item)
        self.ready.sort(key=lambda other: (-other.priority, other.id))

    def ready_bytes(self) -> int:
        return sum(item.size for item in self.ready)

    def all_unacked(self) -> dict[int, set[int]]:
        return {id(consumer): set(consumer.tag_of) for consumer in self.consumers}

    def drop_surplus(self) -> None:
        if self.overflow is Overflow.DROP_HEAD:
            removed: list[Item] = []
            while self.ready and (
                (self.max_length is not None and len(self.ready) > self.max_length)
                or (self.max_bytes is not None and self.ready_bytes() > self.max_bytes)
            ):
                removed.append(self.ready.pop(0))
            self.dispose(removed, DeathReason.MAXLEN)

    def rejects(self, size: int) -> bool:
        if self.overflow is Overflow.DROP_HEAD and not self.stuck:
            return False
        return (self.max_length is not None and len(self.ready) >= self.max_length) or (
            self.max_bytes is not None and self.ready_bytes() + size > self.max_bytes
        )

    def expire(self) -> None:
        removed: list[Item] = []
        while (
            self.ready
            and self.ready[0].expires_ms is not None
            and (self.ready[0].expires_ms <= self.now_ms)
        ):
            removed.append(self.ready.pop(0))
        self.dispose(removed, DeathReason.EXPIRED)

    def deliver(self) -> None:
        """Expired messages at the head are removed first."""
        able = self.consumers[:1] if self.single else self.consumers
        credit = sum(consumer.credit() for consumer in able)
        self.expire()
        while credit and self.ready:
            item = self.ready.pop(0)
            self.unacked[item.id] = item
            self.delivered.append(item.id)
            credit -= 1
            self.expire()

    def end_turn(self) -> None:
        """End the turn of the publishes before, if there were any."""
        if self.unacked_before is not None:
            self.dispatch()

    def dispatch(self) -> None:
        """Dispatch, and compare the deliveries of this turn with the model."""
        before, self.unacked_before = self.unacked_before or self.all_unacked(), None
        if self.stuck and self.now_ms >= self.retry_ms:
            stuck, self.stuck = self.stuck, []
            for reason in dict.fromkeys(reason for reason, _ in stuck):
                self.dispose([item for cause, item in stuck if cause is reason], reason)
        self.deliver()
        self.drop_surplus()
        if self.consumers:
            self.expire()
        self.queue.dispatch()
        new = {
            id(consumer): [e for e in consumer.entries() if e.id not in before[id(consumer)]]
            for consumer in self.consumers
        }
        assert sorted(e.id for entries in new.values() for e in entries) == sorted(self.delivered)
        self.delivered = []
        if self.single:
            assert all(not new[id(consumer)] for consumer in self.consumers[1:])
        for entries in new.values():
            for entry in entries:
                item = self.unacked[entry.id]
                assert entry.redelivered == bool(item.delivery_count)
                count = (
                    item.delivery_count if item.delivery_count and self.limit is not None else None
                )
                assert entry.message.headers().get("x-delivery-count") == count

    # Rules -------------------------------------------------------------------------------------

    @rule(
        size=st.integers(0, 5),
        priority=maybe(st.integers(0, 5)),
        ttl=maybe(st.integers(1, 999)),
        is_last=st.booleans(),
    )
    def publish(self, size: int, priority: int | None, ttl: int | None, is_last: bool) -> None:
        self.last_id += 1
        fields = {"priority": priority, "expiration": None if ttl is None else str(ttl)}
        properties = {key: value for key, value in fields.items() if value is not None}
        message = Message.build(ADDRESS, encode_properties(properties), b"x" * size)
        message.id, message.time_ms = self.last_id, self.now_ms
        level = min(priority or 0, self.max_priority) if self.max_priority is not None else 0
        ttls = [value for value in (ttl, self.ttl) if value is not None]
        item = Item(self.last_id, size, level, self.now_ms + min(ttls) if ttls else None)
        self.unacked_before = self.unacked_before or self.all_unacked()
        if self.rejects(size) and self.consumers:
            self.deliver()
        if self.rejects(size):
            dead_letters = self.dead_letters and not self.target_is_full
            if self.overflow is Overflow.REJECT_PUBLISH_DLX and dead_letters:
                self.dead_lettered.append((item.id, DeathReason.MAXLEN))
            self.removed += 1
            expected = EnqueueResult.REJECTED
        else:
            self.insert(item)
            if not self.consumers and not self.dead_letters:
                self.drop_surplus()
            expected = EnqueueResult.ACCEPTED
        accepted = [EnqueueResult.ACCEPTED]
        if self.overflow is Overflow.REJECT_PUBLISH_DLX and not self.dead_letters:
            count_before = len(self.reported)
            assert (self.queue.enqueue(Run.of([message])) or accepted) == [expected]
            del self.reported[count_before:]  # there is no dead-letter exchange
        else:
            assert (self.queue.enqueue(Run.of([message])) or accepted) == [expected]
        if is_last:
            self.dispatch()

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(prefetch=st.integers(1, 3))
    def consume(self, prefetch: int) -> None:
        self.end_turn()
        consumer = FakeConsumer(prefetch)
        self.queue.add_consumer(consumer)
        self.consumers.append(consumer)
        self.dispatch()

    def requeue(self, ids: list[int]) -> None:
        items = [self.unacked.pop(number) for number in ids]
        for item in items:
            item.delivery_count += 1
        over_limit = [
            item for item in items if self.limit is not None and item.delivery_count > self.limit
        ]
        self.dispose(over_limit, DeathReason.DELIVERY_LIMIT)
        for item in items:
            if item not in over_limit:
                self.insert(item)

    @precondition(lambda self: self.unacked_before is None and bool(self.unacked))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        consumer = data.draw(st.sampled_from([each for each in self.consumers if each.unacked]))
        ids = sorted(consumer.tag_of)
        selected = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
        deliveries = consumer.take(selected)
        if outcome is Outcome.REQUEUE:
            self.requeue(selected)
        else:
            settled = [self.unacked.pop(number) for number in selected]
            if outcome is Outcome.ACK:
                self.removed += len(settled)
            else:
                self.dispose(settled, DeathReason.REJECTED)
        self.queue.settle(deliveries, outcome, 0)
        self.dispatch()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.end_turn()
        consumer = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(consumer)
        self.queue.remove_consumer(consumer)
        self.requeue(list(consumer.tag_of))
        self.queue.settle(consumer.unacked.take_all(), Outcome.REQUEUE, 0)
        self.dispatch()

    @rule()
    def get(self) -> None:
        self.end_turn()
        self.expire()
        delivery = self.queue.basic_get(0, no_ack=True)
        if self.ready and not (self.single and self.consumers):
            assert delivery is not None and delivery.ids == [self.ready.pop(0).id]
            self.removed += 1
        else:
            assert delivery is None

    @rule(ms=st.integers(1, 4_000))
    def wait(self, ms: int) -> None:
        self.end_turn()
        self.now_ms += ms
        self.dispatch()

    @rule(max_length=maybe(st.integers(0, 3)))
    def apply_policy(self, max_length: int | None) -> None:
        self.end_turn()
        limits = [value for value in (max_length, self.own_max_length) if value is not None]
        self.max_length = min(limits) if limits else None
        policy = {} if max_length is None else {"max-length": max_length}
        self.queue.apply_policy(policy, Keep.NOTHING)
        self.dispatch()

    @precondition(lambda self: self.dead_letters)
    @rule()
    def fill_or_empty_the_dead_letter_target(self) -> None:
        self.end_turn()
        self.target_is_full = not self.target_is_full

    @rule()
    def purge(self) -> None:
        self.end_turn()
        assert self.queue.purge() == len(self.ready) + len(self.stuck)
        self.removed += len(self.ready) + len(self.stuck)
        self.ready, self.stuck = [], []

    # Invariants --------------------------------------------------------------------------------

    @invariant()
    def queue_and_model_hold_the_same_messages(self) -> None:
        stuck = {item.id for _, item in self.stuck}
        assert [entry.id for entry in self.queue.ready] == [item.id for item in self.ready]
        held = sorted(number for delivery in self.queue.unacked for number in delivery.ids)
        assert held == sorted(set(self.unacked) | stuck)
        assert self.queue.unacked_count == len(held)
        assert self.queue.ready_count == len(self.ready)
        assert self.queue.message_bytes == self.ready_bytes()
        unacked = [*self.unacked.values(), *(item for _, item in self.stuck)]
        assert self.queue.unacked_bytes == sum(item.size for item in unacked)

    @invariant()
    def each_message_is_dead_lettered_once_for_the_right_reason(self) -> None:
        assert sorted(self.reported) == sorted(self.dead_lettered)
        assert len({number for number, _ in self.reported}) == len(self.reported)

    @invariant()
    def no_message_is_lost(self) -> None:
        in_queue = len(self.ready) + len(self.unacked) + len(self.stuck)
        assert in_queue + self.removed == self.last_id


TestQueueFeatures = FeaturesMachine.TestCase
TestQueueFeatures.settings = settings(
    max_examples=size_or(200), stateful_step_count=40, deadline=None
)
