"""A classic queue against a model: order, credit, nothing delivered twice and nothing lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.model.message import Address, Message
from leveret.queues.classic.classic_queue import ClassicQueue, QueueCallbacks
from leveret.queues.entry import Outcome
from leveret.queues.spec import QueueSpec
from tests.support.fake_consumer import FakeConsumer
from tests.torture.suites import size_or

ADDRESS = Address.of("", "q")


class ClassicMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.queue = ClassicQueue(QueueSpec("q"), 1, QueueCallbacks())
        self.ready, self.unacked, self.done = [], {}, set()
        self.consumers = []
        self.last_id = 0

    def dispatch(self):
        self.queue.dispatch()
        for consumer in self.consumers:
            for entry in consumer.unacked:
                if entry.id in self.ready:
                    self.ready.remove(entry.id)
                    self.unacked[entry.id] = consumer
            if consumer.no_ack:
                for number in consumer.delivered_ids:
                    if number in self.ready:
                        self.ready.remove(number)
                        self.done.add(number)

    @rule(count=st.integers(1, 5))
    def publish(self, count):
        for _ in range(count):
            self.last_id += 1
            message = Message.build(ADDRESS, b"\x00\x00", b"x")
            message.id = self.last_id
            self.queue.enqueue(message)
            self.ready.append(self.last_id)
        self.dispatch()

    @rule(
        prefetch=st.integers(1, 3),
        no_ack=st.booleans(),
        priority=st.integers(0, 1),
    )
    def consume(self, prefetch, no_ack, priority):
        if len(self.consumers) < 4:
            consumer = FakeConsumer(prefetch, no_ack, priority)
            self.queue.add_consumer(consumer)
            self.consumers.append(consumer)
            self.dispatch()

    @precondition(lambda self: any(consumer.unacked for consumer in self.consumers))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle(self, data, outcome):
        busy = [consumer for consumer in self.consumers if consumer.unacked]
        consumer = data.draw(st.sampled_from(busy))
        selected = data.draw(st.lists(st.sampled_from(consumer.unacked), min_size=1, unique=True))
        for entry in selected:
            consumer.unacked.remove(entry)
            del self.unacked[entry.id]
        self.queue.settle(selected, outcome, 0)
        for entry in selected:
            if outcome is Outcome.REQUEUE:
                self.ready.append(entry.id)
                assert entry.redelivered
            else:
                self.done.add(entry.id)
        self.ready.sort()
        self.dispatch()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def cancel(self, data):
        consumer = data.draw(st.sampled_from(self.consumers))
        self.consumers.remove(consumer)
        self.queue.remove_consumer(consumer)
        for entry in consumer.unacked:
            del self.unacked[entry.id]
            self.ready.append(entry.id)
        self.ready.sort()
        self.queue.settle(consumer.unacked, Outcome.REQUEUE, 0)
        self.dispatch()

    @rule()
    def get(self):
        entry = self.queue.basic_get(0, no_ack=True)
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
        assert len(self.ready) + len(self.unacked) + len(self.done) == self.last_id

    @invariant()
    def no_consumer_with_credit_waits_while_messages_are_ready(self):
        if self.ready:
            assert not any(consumer.credit() > 0 for consumer in self.consumers)


TestClassicQueue = ClassicMachine.TestCase
TestClassicQueue.settings = settings(
    max_examples=size_or(200), stateful_step_count=40, deadline=None
)
