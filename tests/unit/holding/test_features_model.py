"""A queue with every feature at once against a model: nothing twice, nothing lost, all in order.

Priorities, lifetimes, limits of number and octets with each overflow, delivery limit, single
active consumer, live policies, dead letters whose target may be full, in any combination and order.
The model says which messages stay, which are handed out, and which die, when and of what.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

from leveret.model.message import Address, Message
from leveret.model.properties import encode_properties
from queues import ClassicQueue, Enqueued, Entry, Outcome, QueueSpec
from queues.burial import RETRY_MS
from queues.options import Overflow
from queues.port import DeathReason, HeldQueue, Upward
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
    due_ms: int | None
    returns: int = 0


@dataclass(eq=False)
class Taker:
    """A consumer with a prefetch."""

    prefetch: int
    held: list[Entry] = field(default_factory=list)
    tag: str = "t"
    no_ack: bool = False
    priority: int = 0
    exclusive: bool = False
    actor: int = 0
    shares_credit: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    def credit(self) -> int:
        return self.prefetch - len(self.held)

    def deliver(self, queue: HeldQueue, entries: Any) -> None:
        assert len(entries) <= self.credit()
        self.held += entries

    def describe(self) -> dict[str, Any]:
        return {}

    def cancelled(self) -> None: ...


class FeaturesMachine(RuleBasedStateMachine):
    @initialize(
        ttl=maybe(st.integers(1, 3_000)),
        length=maybe(st.integers(0, 4)),
        octets=maybe(st.integers(0, 12)),
        overflow=st.sampled_from(Overflow),
        levels=maybe(st.integers(0, 3)),
        limit=maybe(st.integers(0, 2)),
        single=st.booleans(),
        dies_on=st.booleans(),
    )
    def declare(
        self,
        ttl: int | None,
        length: int | None,
        octets: int | None,
        overflow: Overflow,
        levels: int | None,
        limit: int | None,
        single: bool,
        dies_on: bool,
    ) -> None:
        self.now_ms, self.last, self.retry_ms = START_MS, 0, 0
        asked = {
            "x-message-ttl": ttl,
            "x-max-length": length,
            "x-max-length-bytes": octets,
            "x-overflow": str(overflow),
            "x-max-priority": levels,
            "x-delivery-limit": limit,
            "x-single-active-consumer": single,
            "x-dead-letter-exchange": "dlx" if dies_on else None,
        }
        arguments = {key: value for key, value in asked.items() if value is not None}
        upward = Upward(republish=self.republish, now_ms=lambda: self.now_ms)
        self.queue = ClassicQueue(QueueSpec("q", False, arguments=arguments), 1, upward)
        self.ttl, self.overflow, self.levels, self.limit = ttl, overflow, levels, limit
        self.own_length, self.length, self.octets = length, length, octets
        self.single, self.dies_on, self.is_full = single, dies_on, False
        self.ready: list[Item] = []
        self.out: dict[int, Item] = {}
        self.stuck: list[tuple[DeathReason, Item]] = []
        self.gone = 0
        self.dead: list[tuple[int, DeathReason]] = []
        self.told: list[tuple[int, DeathReason]] = []
        self.takers: list[Taker] = []
        self.handed: list[int] = []
        self.before: dict[int, list[Entry]] | None = None

    # What the queue says -----------------------------------------------------------------------

    def republish(self, queue: HeldQueue, messages: Any, reason: DeathReason) -> set[int]:
        if self.is_full:
            return {message.id for message in messages}
        self.told += [(message.id, reason) for message in messages]
        return set()

    # What the model says -----------------------------------------------------------------------

    def die(self, items: list[Item], reason: DeathReason) -> None:
        if not self.dies_on:
            self.gone += len(items)
        elif self.is_full and items:
            self.stuck += [(reason, item) for item in items]
            self.retry_ms = self.now_ms + RETRY_MS
        else:
            self.gone += len(items)
            self.dead += [(item.id, reason) for item in items]

    def place(self, item: Item) -> None:
        self.ready.append(item)
        self.ready.sort(key=lambda one: (-one.priority, one.id))

    def held_octets(self) -> int:
        return sum(item.size for item in self.ready)

    def all_held(self) -> dict[int, list[Entry]]:
        return {id(taker): list(taker.held) for taker in self.takers}

    def trim(self) -> None:
        if self.overflow is Overflow.DROP_HEAD:
            over: list[Item] = []
            while self.ready and (
                (self.length is not None and len(self.ready) > self.length)
                or (self.octets is not None and self.held_octets() > self.octets)
            ):
                over.append(self.ready.pop(0))
            self.die(over, DeathReason.MAXLEN)

    def refuses(self, size: int) -> bool:
        if self.overflow is Overflow.DROP_HEAD and not self.stuck:
            return False
        return (self.length is not None and len(self.ready) >= self.length) or (
            self.octets is not None and self.held_octets() + size > self.octets
        )

    def expire(self) -> None:
        over: list[Item] = []
        while (
            self.ready
            and self.ready[0].due_ms is not None
            and (self.ready[0].due_ms <= self.now_ms)
        ):
            over.append(self.ready.pop(0))
        self.die(over, DeathReason.EXPIRED)

    def hand_out(self) -> None:
        """Consumers take what they can; what has expired at the head dies first."""
        credit = sum(one.credit() for one in (self.takers[:1] if self.single else self.takers))
        self.expire()
        while credit and self.ready:
            item = self.ready.pop(0)
            self.out[item.id] = item
            self.handed.append(item.id)
            credit -= 1
            self.expire()

    def begin(self) -> None:
        """What comes now is a turn of its own: not one with publishes before it."""
        if self.before is not None:
            self.turn()

    def turn(self) -> None:
        """One turn of the queue, and what must have come of it and of publishes in it."""
        before, self.before = self.before or self.all_held(), None
        if self.stuck and self.now_ms >= self.retry_ms:
            again, self.stuck = self.stuck, []
            for reason in dict.fromkeys(reason for reason, _ in again):
                self.die([item for why, item in again if why is reason], reason)
        self.hand_out()
        self.trim()
        if self.takers:
            self.expire()
        self.queue.dispatch()
        found = {
            id(taker): [entry for entry in taker.held if entry not in before[id(taker)]]
            for taker in self.takers
        }
        assert sorted(e.id for entries in found.values() for e in entries) == sorted(self.handed)
        self.handed = []
        if self.single:
            assert all(not found[id(taker)] for taker in self.takers[1:])
        for entries in found.values():
            for entry in entries:
                item = self.out[entry.id]
                assert entry.redelivered == bool(item.returns)
                count = item.returns if item.returns and self.limit is not None else None
                assert entry.message.headers().get("x-delivery-count") == count

    # What may happen ---------------------------------------------------------------------------

    @rule(
        size=st.integers(0, 5),
        priority=maybe(st.integers(0, 5)),
        ttl=maybe(st.integers(1, 999)),
        is_last=st.booleans(),
    )
    def publish(self, size: int, priority: int | None, ttl: int | None, is_last: bool) -> None:
        self.last += 1
        said = {"priority": priority, "expiration": None if ttl is None else str(ttl)}
        properties = {key: value for key, value in said.items() if value is not None}
        message = Message.build(ADDRESS, encode_properties(properties), b"x" * size)
        message.id, message.time_ms = self.last, self.now_ms
        level = min(priority or 0, self.levels) if self.levels is not None else 0
        lives = [one for one in (ttl, self.ttl) if one is not None]
        item = Item(self.last, size, level, self.now_ms + min(lives) if lives else None)
        self.before = self.before or self.all_held()
        if self.refuses(size) and self.takers:
            self.hand_out()
        if self.refuses(size):
            if self.overflow is Overflow.REJECT_PUBLISH_DLX and self.dies_on and not self.is_full:
                self.dead.append((item.id, DeathReason.MAXLEN))
            self.gone += 1
            wanted = Enqueued.REJECTED
        else:
            self.place(item)
            if not self.takers and not self.dies_on:
                self.trim()
            wanted = Enqueued.TAKEN
        if self.overflow is Overflow.REJECT_PUBLISH_DLX and not self.dies_on:
            kept = len(self.told)
            assert self.queue.enqueue(message) is wanted
            del self.told[kept:]  # without a target nobody listens
        else:
            assert self.queue.enqueue(message) is wanted
        if is_last:
            self.turn()

    @precondition(lambda self: len(self.takers) < 3)
    @rule(prefetch=st.integers(1, 3))
    def consume(self, prefetch: int) -> None:
        self.begin()
        taker = Taker(prefetch)
        self.queue.add_consumer(taker)
        self.takers.append(taker)
        self.turn()

    def requeue(self, entries: list[Entry]) -> None:
        back = [self.out.pop(entry.id) for entry in entries]
        for item in back:
            item.returns += 1
        worn = [item for item in back if self.limit is not None and item.returns > self.limit]
        self.die(worn, DeathReason.DELIVERY_LIMIT)
        for item in back:
            if item not in worn:
                self.place(item)

    @precondition(lambda self: self.before is None and any(one.held for one in self.takers))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        taker = data.draw(st.sampled_from([one for one in self.takers if one.held]))
        chosen = data.draw(st.lists(st.sampled_from(taker.held), min_size=1, unique=True))
        taker.held = [entry for entry in taker.held if entry not in chosen]
        if outcome is Outcome.REQUEUE:
            self.requeue(chosen)
        else:
            ended = [self.out.pop(entry.id) for entry in chosen]
            if outcome is Outcome.ACK:
                self.gone += len(ended)
            else:
                self.die(ended, DeathReason.REJECTED)
        self.queue.settle(chosen, outcome, 0)
        self.turn()

    @precondition(lambda self: self.takers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.begin()
        taker = data.draw(st.sampled_from(self.takers))
        self.takers.remove(taker)
        self.queue.remove_consumer(taker)
        if taker.held:
            self.requeue(taker.held)
        self.queue.settle(taker.held, Outcome.REQUEUE, 0)
        self.turn()

    @rule()
    def get(self) -> None:
        self.begin()
        self.expire()
        entry = self.queue.take(0, no_ack=True)
        if self.ready and not (self.single and self.takers):
            assert entry is not None and entry.id == self.ready.pop(0).id
            self.gone += 1
        else:
            assert entry is None

    @rule(ms=st.integers(1, 4_000))
    def wait(self, ms: int) -> None:
        self.begin()
        self.now_ms += ms
        self.turn()

    @rule(length=maybe(st.integers(0, 3)))
    def govern(self, length: int | None) -> None:
        self.begin()
        asked = [one for one in (length, self.own_length) if one is not None]
        self.length = min(asked) if asked else None
        self.queue.govern({} if length is None else {"max-length": length})
        self.turn()

    @precondition(lambda self: self.dies_on)
    @rule()
    def fill_or_empty_the_target(self) -> None:
        self.begin()
        self.is_full = not self.is_full

    @rule()
    def purge(self) -> None:
        self.begin()
        assert self.queue.purge() == len(self.ready) + len(self.stuck)
        self.gone += len(self.ready) + len(self.stuck)
        self.ready, self.stuck = [], []

    # What always holds -------------------------------------------------------------------------

    @invariant()
    def both_hold_the_same(self) -> None:
        stuck = {item.id for _, item in self.stuck}
        assert [entry.id for entry in self.queue.ready] == [item.id for item in self.ready]
        assert set(self.queue.unacked) == set(self.out) | stuck
        assert self.queue.ready_count == len(self.ready)
        assert self.queue.message_bytes == self.held_octets()
        held = [*self.out.values(), *(item for _, item in self.stuck)]
        assert self.queue.unacked_bytes == sum(item.size for item in held)

    @invariant()
    def each_died_once_of_the_right_cause(self) -> None:
        assert sorted(self.told) == sorted(self.dead)
        assert len({number for number, _ in self.told}) == len(self.told)

    @invariant()
    def none_is_lost(self) -> None:
        held = len(self.ready) + len(self.out) + len(self.stuck)
        assert held + self.gone == self.last


TestFeatures = FeaturesMachine.TestCase
TestFeatures.settings = settings(max_examples=size_or(200), stateful_step_count=40, deadline=None)
