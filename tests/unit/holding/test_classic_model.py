"""A classic queue against a model: order, places, credit, nothing twice and nothing lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.model.message import Address, Message
from queues import ClassicQueue, Outcome, QueueSpec
from queues.port import Upward
from tests.torture.suites import size_or

ADDRESS = Address.of("", "q")


class Taker:
    """A consumer with a prefetch."""

    def __init__(self, queue, prefetch, no_ack, priority):
        self.tag = f"c{id(self)}"
        self.prefetch, self.no_ack, self.priority = prefetch, no_ack, priority
        self.exclusive, self.arguments, self.actor, self.shares_credit = False, {}, 0, False
        self.held = []
        self.seen = []
        self.queue = queue
        self.was_cancelled = False

    def credit(self):
        return 1000 if self.no_ack else self.prefetch - len(self.held)

    def deliver(self, queue, entries):
        assert len(entries) <= self.credit()
        self.seen += [entry.id for entry in entries]
        if not self.no_ack:
            self.held += entries

    def describe(self):
        return {"consumer_tag": self.tag}

    def cancelled(self):
        self.was_cancelled = True


class ClassicMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.queue = ClassicQueue(QueueSpec("q"), 1, Upward())
        self.ready, self.unacked, self.done = [], {}, set()
        self.takers = []
        self.last = 0

    def settle_down(self):
        self.queue.dispatch()
        for taker in self.takers:
            for entry in taker.held:
                if entry.id in self.ready:
                    self.ready.remove(entry.id)
                    self.unacked[entry.id] = taker
            if taker.no_ack:
                for number in taker.seen:
                    if number in self.ready:
                        self.ready.remove(number)
                        self.done.add(number)

    @rule(count=st.integers(1, 5))
    def publish(self, count):
        for _ in range(count):
            self.last += 1
            message = Message.build(ADDRESS, b"\x00\x00", b"x")
            message.id = self.last
            self.queue.enqueue(message)
            self.ready.append(self.last)
        self.settle_down()

    @rule(
        prefetch=st.integers(1, 3),
        no_ack=st.booleans(),
        priority=st.integers(0, 1),
    )
    def consume(self, prefetch, no_ack, priority):
        if len(self.takers) < 4:
            taker = Taker(self.queue, prefetch, no_ack, priority)
            self.queue.add_consumer(taker)
            self.takers.append(taker)
            self.settle_down()

    @precondition(lambda self: any(taker.held for taker in self.takers))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle(self, data, outcome):
        taker = data.draw(st.sampled_from([one for one in self.takers if one.held]))
        chosen = data.draw(st.lists(st.sampled_from(taker.held), min_size=1, unique=True))
        for entry in chosen:
            taker.held.remove(entry)
            del self.unacked[entry.id]
        self.queue.settle(chosen, outcome, 0)
        for entry in chosen:
            if outcome is Outcome.REQUEUE:
                self.ready.append(entry.id)
                assert entry.redelivered
            else:
                self.done.add(entry.id)
        self.ready.sort()
        self.settle_down()

    @precondition(lambda self: self.takers)
    @rule(data=st.data())
    def leave(self, data):
        taker = data.draw(st.sampled_from(self.takers))
        self.takers.remove(taker)
        self.queue.remove_consumer(taker)
        for entry in taker.held:
            del self.unacked[entry.id]
            self.ready.append(entry.id)
        self.ready.sort()
        self.queue.settle(taker.held, Outcome.REQUEUE, 0)
        self.settle_down()

    @rule()
    def get(self):
        entry = self.queue.take(0, no_ack=True)
        if self.ready:
            assert entry is not None and entry.id == self.ready.pop(0)
            self.done.add(entry.id)
        else:
            assert entry is None

    @rule()
    def purge(self):
        assert self.queue.purge() == len(self.ready)
        self.done.update(self.ready)
        self.ready.clear()

    @invariant()
    def counts_and_order_agree(self):
        assert [entry.id for entry in self.queue.ready] == self.ready
        assert set(self.queue.unacked) == set(self.unacked)
        assert self.queue.ready_count == len(self.ready)
        assert self.queue.ready_bytes == len(self.ready)
        assert len(self.ready) + len(self.unacked) + len(self.done) == self.last

    @invariant()
    def nobody_with_credit_waits_while_messages_do(self):
        if self.ready:
            assert not any(taker.credit() > 0 for taker in self.takers)


TestClassicQueue = ClassicMachine.TestCase
TestClassicQueue.settings = settings(
    max_examples=size_or(200), stateful_step_count=40, deadline=None
)
