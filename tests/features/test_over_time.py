"""Queue features with a clock the test moves: restarts, beyond the window, into full queues."""

from contextlib import asynccontextmanager

from leveret.broker.policies import Policy
from queues import Outcome
from tests.features.hub import Hub


@asynccontextmanager
async def running(hub):
    try:
        yield hub
    finally:
        await hub.stop()


HOUR_MS = 3_600_000


async def test_ttl_goes_on_over_a_restart(tmp_path):
    hub = await Hub.start(tmp_path)
    hub.queue("q", message_ttl=10_000)
    hub.publish("", "q", b"old")
    await hub.advance(6)
    hub.publish("", "q", b"new")
    async with running(await hub.restart()) as hub:
        await hub.settle()
        await hub.advance(5)
        await hub.until(lambda: hub.vhost.queues["q"].ready_count == 1)
        assert await hub.bodies("q") == [b"new"]


async def test_a_clock_set_back_over_a_restart_does_not_prolong_a_life(tmp_path):
    hub = await Hub.start(tmp_path)
    hub.queue("q", message_ttl=10_000)
    hub.publish("", "q", b"x")
    async with running(await hub.restart(hub.clock.wall_ms() - 24 * HOUR_MS)) as hub:
        await hub.settle()
        assert hub.vhost.queues["q"].ready_count == 1
        await hub.advance(11)
        await hub.until(lambda: hub.vhost.queues["q"].ready_count == 0)


async def test_what_has_expired_stays_dead_when_the_clock_is_set_back(tmp_path):
    hub = await Hub.start(tmp_path)
    hub.queue("grave")
    hub.queue("q", message_ttl=1_000, dead_letter_exchange="", dead_letter_routing_key="grave")
    hub.publish("", "q", b"x")
    await hub.advance(2)
    async with running(await hub.restart(hub.clock.wall_ms() - HOUR_MS)) as hub:
        await hub.settle()
        assert await hub.bodies("q") == []
        assert await hub.bodies("grave") == [b"x"]


async def test_priorities_hold_after_a_restart(tmp_path):
    hub = await Hub.start(tmp_path)
    hub.queue("q", max_priority=9)
    for number in range(5_000):
        hub.publish("", "q", b"%d" % number, priority=number % 10)
    async with running(await hub.restart()) as hub:
        numbers = [int(body) for body in await hub.bodies("q")]
        assert numbers == sorted(range(5_000), key=lambda n: (-(n % 10), n))


async def test_max_length_holds_beyond_the_window(tmp_path):
    async with running(await Hub.start(tmp_path, queue_window=50)) as hub:
        hub.queue("q", max_length=100)
        for number in range(1_000):
            hub.publish("", "q", b"%d" % number)
            if number % 50 == 0:
                await hub.settle()
        queue = hub.vhost.queues["q"]
        await hub.until(lambda: queue.ready_count == 100)
        assert await hub.bodies("q") == [b"%d" % n for n in range(900, 1_000)]


async def test_expiry_reaches_what_is_on_disk_only_without_a_consumer(tmp_path):
    async with running(await Hub.start(tmp_path, queue_window=50)) as hub:
        hub.queue("grave")
        hub.queue("q", message_ttl=1_000, dead_letter_exchange="", dead_letter_routing_key="grave")
        for number in range(500):
            hub.publish("", "q", b"%d" % number)
        await hub.settle()
        await hub.advance(2)
        await hub.until(lambda: hub.vhost.queues["q"].ready_count == 0)
        assert len(await hub.bodies("grave")) == 500


async def test_a_policy_that_shortens_a_queue_reaches_what_is_on_disk(tmp_path):
    hub = await Hub.start(tmp_path)
    hub.queue("q")
    for number in range(100):
        hub.publish("", "q", b"%d" % number)
    async with running(await hub.restart()) as hub:
        hub.broker.policies.put(Policy("/", "short", "^q$", {"max-length": 10}))
        await hub.until(lambda: hub.vhost.queues["q"].ready_count == 10)
        assert await hub.bodies("q") == [b"%d" % n for n in range(90, 100)]


class TestFullTarget:
    """The decided divergence: what the dead-letter target refuses by limit stays at its source."""

    def pair(self, hub, **arguments):
        hub.queue("grave", max_length=1, overflow="reject-publish")
        return hub.queue("q", dead_letter_exchange="", dead_letter_routing_key="grave", **arguments)

    async def make_room(self, hub):
        found = await hub.bodies("grave")
        await hub.advance(2)
        hub.broker.upkeep.watch()
        return found

    async def test_expired(self, hub):
        queue = self.pair(hub, message_ttl=1_000)
        for body in (b"1", b"2"):
            hub.publish("", "q", body)
        await hub.advance(2)
        hub.broker.upkeep.watch()
        assert (queue.ready_count, queue.unacked_count) == (0, 1)
        assert "queue 'q' in vhost '/'" in hub.broker.alarms.raised["dead-letters"]
        assert hub.broker.alarms.reason == ""
        assert await self.make_room(hub) == [b"1"]
        assert queue.unacked_count == 0
        assert hub.broker.alarms.raised == {}
        assert await hub.bodies("grave") == [b"2"]

    async def test_rejected(self, hub):
        queue = self.pair(hub)
        for body in (b"1", b"2"):
            hub.publish("", "q", body)
        await hub.take("q", outcome=Outcome.REJECT)
        assert queue.unacked_count == 1
        assert await self.make_room(hub) == [b"1"]
        assert await hub.bodies("grave") == [b"2"]

    async def test_too_long_turns_newcomers_away_meanwhile(self, hub):
        queue = self.pair(hub, max_length=1)
        answers = []
        for body in (b"1", b"2", b"3", b"4"):
            answers.append(hub.publish("", "q", body).taken)
            await hub.settle()
        assert answers == [True, True, True, False]
        assert (queue.ready_count, queue.unacked_count) == (1, 1)
        assert await self.make_room(hub) == [b"1"]
        assert await hub.bodies("grave") == [b"2"]
        assert await hub.bodies("q") == [b"3"]

    async def test_stuck_messages_survive_a_restart(self, tmp_path):
        hub = await Hub.start(tmp_path)
        self.pair(hub)
        for body in (b"1", b"2"):
            hub.publish("", "q", body)
        await hub.take("q", outcome=Outcome.REJECT)
        async with running(await hub.restart()) as hub:
            assert await hub.bodies("grave") == [b"1"]
            assert await hub.bodies("q") == [b"2"]

    async def test_purge_and_delete_take_them_along(self, hub):
        queue = self.pair(hub)
        for body in (b"1", b"2", b"3"):
            hub.publish("", "q", body)
        await hub.take("q", outcome=Outcome.REJECT)
        assert queue.purge() == 2
        assert queue.unacked_count == 0


async def test_a_circle_through_a_remembering_exchange_ends(hub):
    hub.exchange("x", "x-recent-history")
    hub.queue("q", message_ttl=1_000, dead_letter_exchange="x")
    hub.bind("x", "q")
    hub.publish("", "q", b"x")
    for _ in range(3):
        await hub.advance(2)
    assert hub.vhost.queues["q"].ready_count == 0


async def test_a_target_that_is_named_like_its_source_is_no_circle(hub):
    hub.exchange("q", "x-message-deduplication")
    hub.queue("grave")
    hub.bind("q", "grave")
    hub.queue("q", message_ttl=1_000, dead_letter_exchange="q")
    hub.publish("", "q", b"x", headers={"x-deduplication-header": "a"})
    await hub.advance(2)
    assert await hub.bodies("grave") == [b"x"]
