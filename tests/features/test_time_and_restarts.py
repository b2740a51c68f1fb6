"""Queue features with a manual clock: restarts, messages beyond the window, full targets."""

from contextlib import asynccontextmanager

from leveret.broker.policies.policies import Policy
from leveret.queues.entry import Outcome
from tests.features.harness import BrokerHarness


@asynccontextmanager
async def running(harness):
    try:
        yield harness
    finally:
        await harness.stop()


HOUR_MS = 3_600_000


async def test_ttl_continues_after_a_restart(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("q", message_ttl=10_000)
    harness.publish("", "q", b"old")
    await harness.advance(6)
    harness.publish("", "q", b"new")
    async with running(await harness.restart()) as harness:
        await harness.settle()
        await harness.advance(5)
        await harness.until(lambda: harness.vhost.queues["q"].ready_count == 1)
        assert await harness.bodies("q") == [b"new"]


async def test_clock_set_back_during_a_restart_does_not_extend_ttl(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("q", message_ttl=10_000)
    harness.publish("", "q", b"x")
    async with running(await harness.restart(harness.clock.wall_ms() - 24 * HOUR_MS)) as harness:
        await harness.settle()
        assert harness.vhost.queues["q"].ready_count == 1
        await harness.advance(11)
        await harness.until(lambda: harness.vhost.queues["q"].ready_count == 0)


async def test_expired_message_stays_expired_when_the_clock_is_set_back(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("dlq")
    harness.queue("q", message_ttl=1_000, dead_letter_exchange="", dead_letter_routing_key="dlq")
    harness.publish("", "q", b"x")
    await harness.advance(2)
    async with running(await harness.restart(harness.clock.wall_ms() - HOUR_MS)) as harness:
        await harness.settle()
        assert await harness.bodies("q") == []
        assert await harness.bodies("dlq") == [b"x"]


async def test_priorities_survive_a_restart(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("q", max_priority=9)
    for number in range(5_000):
        harness.publish("", "q", b"%d" % number, priority=number % 10)
    async with running(await harness.restart()) as harness:
        numbers = [int(body) for body in await harness.bodies("q")]
        assert numbers == sorted(range(5_000), key=lambda n: (-(n % 10), n))


async def test_max_length_applies_beyond_the_window(tmp_path):
    async with running(await BrokerHarness.start(tmp_path, queue_window=50)) as harness:
        harness.queue("q", max_length=100)
        for number in range(1_000):
            harness.publish("", "q", b"%d" % number)
            if number % 50 == 0:
                await harness.settle()
        queue = harness.vhost.queues["q"]
        await harness.until(lambda: queue.ready_count == 100)
        assert await harness.bodies("q") == [b"%d" % n for n in range(900, 1_000)]


async def test_messages_on_disk_expire_without_a_consumer(tmp_path):
    async with running(await BrokerHarness.start(tmp_path, queue_window=50)) as harness:
        harness.queue("dlq")
        harness.queue(
            "q", message_ttl=1_000, dead_letter_exchange="", dead_letter_routing_key="dlq"
        )
        for number in range(500):
            harness.publish("", "q", b"%d" % number)
        await harness.settle()
        await harness.advance(2)
        await harness.until(lambda: harness.vhost.queues["q"].ready_count == 0)
        assert len(await harness.bodies("dlq")) == 500


async def test_shorter_max_length_drops_messages_on_disk(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("q")
    for number in range(100):
        harness.publish("", "q", b"%d" % number)
    async with running(await harness.restart()) as harness:
        harness.broker.policies.put(Policy("/", "short", "^q$", {"max-length": 10}))
        await harness.until(lambda: harness.vhost.queues["q"].ready_count == 10)
        assert await harness.bodies("q") == [b"%d" % n for n in range(90, 100)]


class TestFullTarget:
    """Unlike in RabbitMQ, dead letters that a full target rejects stay in their source queue."""

    def pair(self, harness, **arguments):
        harness.queue("dlq", max_length=1, overflow="reject-publish")
        return harness.queue(
            "q", dead_letter_exchange="", dead_letter_routing_key="dlq", **arguments
        )

    async def make_room(self, harness):
        bodies = await harness.bodies("dlq")
        await harness.advance(2)
        harness.broker.resource_monitor.check()
        return bodies

    async def test_expired_message_waits_for_room(self, harness):
        queue = self.pair(harness, message_ttl=1_000)
        for body in (b"1", b"2"):
            harness.publish("", "q", body)
        await harness.advance(2)
        harness.broker.resource_monitor.check()
        assert (queue.ready_count, queue.unacked_count) == (0, 1)
        assert "queue 'q' in vhost '/'" in harness.broker.alarms.raised["dead-letters"]
        assert harness.broker.alarms.reason == ""
        assert await self.make_room(harness) == [b"1"]
        assert queue.unacked_count == 0
        assert harness.broker.alarms.raised == {}
        assert await harness.bodies("dlq") == [b"2"]

    async def test_rejected_message_waits_for_room(self, harness):
        queue = self.pair(harness)
        for body in (b"1", b"2"):
            harness.publish("", "q", body)
        await harness.take("q", outcome=Outcome.REJECT)
        assert queue.unacked_count == 1
        assert await self.make_room(harness) == [b"1"]
        assert await harness.bodies("dlq") == [b"2"]

    async def test_queue_with_a_stuck_message_over_its_max_length_rejects_publishes(self, harness):
        queue = self.pair(harness, max_length=1)
        accepted = []
        for body in (b"1", b"2", b"3", b"4"):
            accepted.append(harness.publish("", "q", body).accepted)
            await harness.settle()
        assert accepted == [True, True, True, False]
        assert (queue.ready_count, queue.unacked_count) == (1, 1)
        assert await self.make_room(harness) == [b"1"]
        assert await harness.bodies("dlq") == [b"2"]
        assert await harness.bodies("q") == [b"3"]

    async def test_stuck_messages_survive_a_restart(self, tmp_path):
        harness = await BrokerHarness.start(tmp_path)
        self.pair(harness)
        for body in (b"1", b"2"):
            harness.publish("", "q", body)
        await harness.take("q", outcome=Outcome.REJECT)
        async with running(await harness.restart()) as harness:
            assert await harness.bodies("dlq") == [b"1"]
            assert await harness.bodies("q") == [b"2"]

    async def test_purge_and_delete_remove_stuck_messages(self, harness):
        queue = self.pair(harness)
        for body in (b"1", b"2", b"3"):
            harness.publish("", "q", body)
        await harness.take("q", outcome=Outcome.REJECT)
        assert queue.purge() == 2
        assert queue.unacked_count == 0


async def test_cycle_through_a_recent_history_exchange_ends(harness):
    harness.exchange("x", "x-recent-history")
    harness.queue("q", message_ttl=1_000, dead_letter_exchange="x")
    harness.bind("x", "q")
    harness.publish("", "q", b"x")
    for _ in range(3):
        await harness.advance(2)
    assert harness.vhost.queues["q"].ready_count == 0


async def test_target_exchange_with_the_name_of_the_source_queue_is_not_a_cycle(harness):
    harness.exchange("q", "x-message-deduplication")
    harness.queue("dlq")
    harness.bind("q", "dlq")
    harness.queue("q", message_ttl=1_000, dead_letter_exchange="q")
    harness.publish("", "q", b"x", headers={"x-deduplication-header": "a"})
    await harness.advance(2)
    assert await harness.bodies("dlq") == [b"x"]
