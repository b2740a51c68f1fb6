"""What is deleted is let go of: nothing grows with everything there has ever been."""

import gc
import weakref

import pytest

from amqp_server.patience import Patience
from leveret.broker.deadlines import FORGOTTEN_AT_MOST, Deadlines
from leveret.model.clock import ManualClock
from queues import QueueSpec


def is_freed(hub, left):
    hub.broker.metrics.sample()  # the last sample may have known it
    gc.collect()
    return left() is None


class Waiting:
    """All that the alarm clock knows of a queue."""

    def __init__(self):
        self.touched = 0


@pytest.mark.parametrize("durable", [True, False])
async def test_a_deleted_queue_is_freed_before_its_expiry_would_have_come(hub, durable):
    queue = hub.queue("q", durable, expires=86_400_000, message_ttl=3_600_000)
    hub.publish("", "q", b"x")
    await hub.settle()
    hub.vhost.delete_queue("q")
    await hub.settle()
    left = weakref.ref(queue)
    del queue
    assert is_freed(hub, left)


async def test_the_schedule_of_a_deleted_exchange_is_freed(hub):
    hub.exchange("later", "x-delayed-message", delayed_type="direct")
    hub.queue("q")
    hub.bind("later", "q", "k")
    hub.publish("later", "k", b"x", headers={"x-delay": 3_600_000})
    await hub.settle()
    (waiting,) = hub.broker.stations.delays.by_exchange.values()
    hub.vhost.delete_exchange("later")
    await hub.settle()
    left = weakref.ref(waiting)
    del waiting
    assert is_freed(hub, left)


async def test_promises_about_messages_in_memory_are_forgotten(hub):
    hub.queue("grave", durable=False, max_length=1)
    hub.queue("q", False, max_length=1, dead_letter_exchange="", dead_letter_routing_key="grave")
    for _ in range(10):
        hub.publish("", "q", b"x", persistent=False)
        await hub.settle()
    assert not hub.broker.store._batch.firm


async def test_a_virtual_host_is_not_kept_by_who_waited_for_its_acks(hub):
    patience, vhost = Patience(), hub.broker.add_vhost("brief")
    patience._shortest[vhost] = (vhost.version, 0)
    hub.broker.delete_vhost("brief")
    await hub.settle()
    left = weakref.ref(vhost)
    del vhost
    assert is_freed(hub, left)


async def test_a_log_deleted_while_another_is_compacted_is_not_tidied(hub, monkeypatch, caplog):
    kinds = {"x-queue-type": "stream", "x-max-age": "1h", "x-cleanup-policy": "compact"}
    for name in ("first", "second"):
        hub.vhost.declare_queue(QueueSpec(name, True, arguments=kinds))
    await hub.settle()
    keeper, compact = hub.broker.log_keeper, hub.broker.log_keeper._compact
    tidied = []

    async def compact_and_delete(queue, now_ms):
        await compact(queue, now_ms)
        tidied.append(queue.name)
        if queue.name == "first":
            hub.vhost.delete_queue("second")
            await hub.settle()
            await hub.until(lambda: not keeper._removals)

    monkeypatch.setattr(keeper, "_compact", compact_and_delete)
    await keeper.tidy()
    await hub.settle()
    assert tidied == ["first"]
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


class TestDeadlines:
    @pytest.fixture
    async def clock(self):
        return ManualClock()

    @pytest.fixture
    async def deadlines(self, clock):
        made = Deadlines(clock, lambda one: setattr(one, "touched", one.touched + 1))
        yield made
        made.stop()

    async def test_the_sooner_of_two_moments_counts_and_only_once(self, clock, deadlines):
        one, now = Waiting(), clock.wall_ms()
        for after in (3_000, 1_000, 2_000):
            deadlines.look_at(now + after, one)
        clock.advance(1)
        deadlines.run()
        assert one.touched == 1
        clock.advance(5)
        deadlines.run()
        assert one.touched == 1

    async def test_who_is_forgotten_is_not_touched_and_may_ask_again(self, clock, deadlines):
        one, other, now = Waiting(), Waiting(), clock.wall_ms()
        for each in (one, other):
            deadlines.look_at(now + 1_000, each)
        deadlines.forget(one)
        clock.advance(1)
        deadlines.run()
        assert (one.touched, other.touched) == (0, 1)
        deadlines.look_at(clock.wall_ms() + 1_000, one)
        clock.advance(1)
        deadlines.run()
        assert one.touched == 1

    async def test_moments_that_nobody_waits_for_do_not_gather(self, clock, deadlines):
        stays, later = Waiting(), clock.wall_ms() + 3_600_000
        deadlines.look_at(later, stays)
        for _ in range(3 * FORGOTTEN_AT_MOST):
            goes = Waiting()
            deadlines.look_at(later, goes)
            deadlines.forget(goes)
        assert len(deadlines._heap) <= FORGOTTEN_AT_MOST + 2
        clock.advance(3_600)
        deadlines.run()
        assert stays.touched == 1
