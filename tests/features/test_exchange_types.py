"""Exchange types of plugins: which queue gets a message, how often, and when."""

from collections import Counter

import pytest

from leveret.broker.publishing import plugin_exchanges
from leveret.model.errors import PreconditionFailed
from leveret.queues.entry import Outcome
from tests.features.harness import BrokerHarness
from tests.features.test_time_and_restarts import running


def spread(harness, names):
    return {name: harness.vhost.queues[name].ready_count for name in names}


class TestConsistentHash:
    def declare(self, harness, weights, **arguments):
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        harness.vhost.declare_exchange(harness.spec("h", "x-consistent-hash", named))
        for name, weight in weights.items():
            harness.queue(name)
            harness.bind("h", name, str(weight))

    async def test_equal_keys_reach_one_queue_and_weights_hold(self, harness):
        weights = {"a": 1, "b": 1, "c": 2}
        self.declare(harness, weights)
        for number in range(4_000):
            assert harness.publish("h", f"key-{number}").routed
        counts = spread(harness, weights)
        assert sum(counts.values()) == 4_000
        assert 1_700 < counts["c"] < 2_300
        assert 750 < counts["a"] < 1_250
        before = spread(harness, weights)
        for _ in range(10):
            harness.publish("h", "same")
        moved = {n: c - before[n] for n, c in spread(harness, weights).items()}
        assert sorted(moved.values()) == [0, 0, 10]

    async def test_new_queue_takes_over_only_its_share(self, harness):
        self.declare(harness, {"a": 1, "b": 1})
        matcher = harness.vhost.exchanges["h"].matcher
        keys = [f"key-{n}" for n in range(1_000)]
        before = {key: next(iter(matcher.match(key, {}))).name for key in keys}
        harness.queue("c")
        harness.bind("h", "c", "1")
        after = {key: next(iter(matcher.match(key, {}))).name for key in keys}
        assert all(after[key] in (before[key], "c") for key in keys)
        assert 230 < Counter(after.values())["c"] < 440

    @pytest.mark.parametrize(
        ("argument", "properties"),
        [
            ({"hash_header": "user"}, lambda n: {"headers": {"user": f"u{n}"}}),
            ({"hash_property": "message_id"}, lambda n: {"message_id": f"m{n}"}),
            ({"hash_property": "correlation_id"}, lambda n: {"correlation_id": f"c{n}"}),
            ({"hash_property": "timestamp"}, lambda n: {"timestamp": 1_700_000_000 + n}),
        ],
    )
    async def test_messages_are_hashed_by_a_header_or_property(self, harness, argument, properties):
        self.declare(harness, {"a": 1, "b": 1}, **argument)
        for number in range(100):
            harness.publish("h", "all the same", **properties(number))
        counts = spread(harness, "ab")
        assert min(counts.values()) > 20
        before = counts
        for _ in range(5):
            harness.publish("h", "another", **properties(1))
        assert sorted(spread(harness, "ab")[n] - before[n] for n in "ab") == [0, 5]

    async def test_invalid_declarations_are_refused(self, harness):
        with pytest.raises(PreconditionFailed, match="mutually exclusive"):
            self.declare(harness, {}, hash_header="a", hash_property="message_id")
        with pytest.raises(PreconditionFailed, match="unsupported property"):
            self.declare(harness, {}, hash_property="app_id")
        with pytest.raises(PreconditionFailed, match="whole number greater than 0"):
            self.declare(harness, {"a": "heavy"})


async def test_modulus_hash_spreads_keys_and_is_stable(harness):
    harness.exchange("m", "x-modulus-hash")
    for name in "abc":
        harness.queue(name)
        harness.bind("m", name)
    for number in range(300):
        harness.publish("m", f"key-{number % 30}")
    assert sum(spread(harness, "abc").values()) == 300
    assert all(count % 10 == 0 and count for count in spread(harness, "abc").values())


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
async def test_random_exchange_routes_each_message_to_one_queue(harness, kind):
    harness.exchange("r", kind)
    assert not harness.publish("r", "k").routed
    for name in "ab":
        harness.queue(name)
        harness.bind("r", name)
    for _ in range(200):
        harness.publish("r", "k")
    assert sum(spread(harness, "ab").values()) == 200
    assert min(spread(harness, "ab").values()) > 50


class TestRecentHistory:
    async def test_new_binding_gets_the_last_messages(self, harness):
        harness.exchange("x", "x-recent-history", recent_history_length=3)
        for number in range(5):
            harness.publish("x", "k", b"%d" % number)
        harness.queue("late")
        harness.bind("x", "late")
        harness.publish("x", "k", b"5")
        await harness.settle()
        assert await harness.bodies("late") == [b"2", b"3", b"4", b"5"]

    async def test_history_is_twenty_messages_without_no_store(self, harness):
        harness.exchange("x", "x-recent-history")
        for number in range(30):
            harness.publish("x", "k", b"%d" % number)
        harness.publish("x", "k", b"no", headers={"x-recent-history-no-store": True})
        harness.queue("late")
        harness.bind("x", "late")
        assert await harness.bodies("late") == [b"%d" % n for n in range(10, 30)]

    @pytest.mark.parametrize("between", ["nothing", "fanout", "topic"])
    async def test_replay_is_limited(self, harness, monkeypatch, between):
        monkeypatch.setattr(plugin_exchanges, "MAX_REPLAYED", 12)
        harness.exchange("x", "x-recent-history", recent_history_length=100_000)
        for number in range(30):
            harness.publish("x", f"{number}.k", b"%d" % number)
        queues = {"nothing": ["a"], "fanout": ["a", "b", "c"], "topic": ["a"]}[between]
        for name in queues:
            harness.queue(name)
        if between == "nothing":
            harness.bind("x", "a")
        else:
            harness.exchange("y", between)
            for name in queues:
                harness.bind("y", name, "#.k")
            harness.bind_exchange("x", "y")
        harness.publish("x", "k", b"30")
        await harness.settle()
        count = {"nothing": 12, "fanout": 3, "topic": 5}[between]
        for name in queues:
            assert await harness.bodies(name) == [b"%d" % n for n in range(30 - count, 31)]

    async def test_invalid_history_length_is_refused(self, harness):
        with pytest.raises(PreconditionFailed, match="x-recent-history-length"):
            harness.exchange("x", "x-recent-history", recent_history_length=0)


class TestDelayed:
    def make(self, harness, kind="direct"):
        harness.exchange("d", "x-delayed-message", delayed_type=kind)
        harness.queue("q")
        harness.bind("d", "q", "k")

    async def test_delayed_messages_are_released_in_due_order(self, harness):
        self.make(harness)
        for body, delay in ((b"late", 3_000), (b"soon", 1_000), (b"now", 0)):
            harness.publish("d", "k", body, headers={"x-delay": delay, "mine": 1})
        harness.publish("d", "k", b"plain")
        await harness.settle()
        assert await harness.bodies("q") == [b"now", b"plain"]
        await harness.advance(1.5)
        (message,) = await harness.take("q")
        assert message.body == b"soon"
        assert message.headers() == {"x-delay": -1_000, "mine": 1}
        assert (message.exchange, message.routing_key) == ("d", "k")
        await harness.advance(2)
        assert await harness.bodies("q") == [b"late"]

    async def test_delayed_message_does_not_count_as_published_out(self, harness):
        self.make(harness)
        harness.queue("r")
        harness.bind("d", "r", "k")
        harness.exchange("before", "fanout")
        harness.bind_exchange("before", "d")
        delayed, before = harness.vhost.exchanges["d"], harness.vhost.exchanges["before"]
        for exchange, key in (("d", "k"), ("d", "unbound"), ("before", "k"), ("d", "k")):
            harness.publish(exchange, key, headers={"x-delay": 1_000})
        await harness.settle()
        assert (delayed.published_in, delayed.published_out) == (3, 0)
        assert (before.published_in, before.published_out) == (1, 1)
        delay_queue = harness.broker.plugin_exchanges.delay_queues.by_exchange[delayed]
        last = (await delay_queue.scheduled(3, 1))[0].message.id
        assert delay_queue.cancel(last)
        await harness.advance(1.5)
        await harness.until(lambda: harness.vhost.queues["r"].ready_count == 2)
        assert (delayed.published_in, delayed.published_out) == (3, 4)

    async def test_delayed_message_is_counted_when_released_after_a_restart(self, tmp_path):
        harness = await BrokerHarness.start(tmp_path)
        self.make(harness)
        harness.publish("d", "unbound", headers={"x-delay": 1_000})
        await harness.settle()
        async with running(await harness.restart()) as harness:
            await harness.advance(1.5)
            delayed = harness.vhost.exchanges["d"]
            delay_queue = harness.broker.plugin_exchanges.delay_queues.by_exchange[delayed]
            await harness.until(lambda: len(delay_queue) == 0)
            assert delayed.published_out == 0

    async def test_content_is_in_memory_before_a_message_is_due(self, harness):
        """So nothing has to be read or awaited when it is due, at exactly its millisecond."""
        self.make(harness)
        harness.publish("d", "k", headers={"x-delay": 1_003})
        await harness.settle()
        exchange, target = harness.vhost.exchanges["d"], harness.vhost.queues["q"]
        delay_queue = harness.broker.plugin_exchanges.delay_queues.by_exchange[exchange]
        await harness.advance(1)
        await harness.until(lambda: len(delay_queue._content) == 1)
        assert target.ready_count == 0
        harness.clock.advance(0.002)
        delay_queue.dispatch()
        assert target.ready_count == 0
        harness.clock.advance(0.001)
        delay_queue.dispatch()
        assert target.ready_count == 1 and not delay_queue._content

    async def test_delayed_type_routes_messages(self, harness):
        self.make(harness, "topic")
        harness.bind("d", "q", "a.#")
        harness.publish("d", "a.b", b"x", headers={"x-delay": 10})
        harness.publish("d", "b.a", b"y", headers={"x-delay": 10})
        await harness.settle()
        await harness.advance(1)
        assert await harness.bodies("q") == [b"x"]

    async def test_invalid_copy_keys_do_not_stop_the_release(self, harness):
        self.make(harness, "topic")
        harness.bind("d", "q", "#")
        harness.publish("d", "a", b"odd", headers={"x-delay": 10, "CC": [1, None, "b"]})
        harness.publish("d", "a", b"usual", headers={"x-delay": 10})
        await harness.advance(1)
        await harness.until(lambda: harness.vhost.queues["q"].ready_count == 2)
        assert await harness.bodies("q") == [b"odd", b"usual"]

    async def test_bcc_keys_are_routed_and_not_visible(self, harness):
        self.make(harness)
        for name in ("seen", "blind"):
            harness.queue(name)
            harness.bind("d", name, name)
        headers = {"x-delay": 10, "CC": ["seen"], "BCC": ["blind", "k"]}
        harness.publish("d", "k", b"copied", headers=headers)
        harness.publish("d", "k", b"alone", headers={"x-delay": 10})
        await harness.advance(1)
        await harness.until(lambda: harness.vhost.queues["q"].ready_count == 2)
        assert await harness.bodies("q") == [b"copied", b"alone"]
        for name in ("seen", "blind"):
            (message,) = await harness.take(name)
            assert message.headers() == {"x-delay": -10, "CC": ["seen"]}

    async def test_message_that_cannot_be_routed_is_postponed(self, harness, monkeypatch):
        self.make(harness)
        delays = harness.broker.plugin_exchanges.delay_queues.get_or_create(
            harness.vhost, harness.vhost.exchanges["d"]
        )
        route_on = delays._route_on

        def fail_on_bad(stored):
            if stored.body == b"bad":
                raise ValueError("error of the test")
            return route_on(stored)

        monkeypatch.setattr(delays, "_route_on", fail_on_bad)
        for body in (b"bad", b"good"):
            harness.publish("d", "k", body, headers={"x-delay": 10})
        await harness.advance(1)
        await harness.until(lambda: harness.vhost.queues["q"].ready_count == 1)
        assert await harness.bodies("q") == [b"good"]
        monkeypatch.setattr(delays, "_route_on", route_on)
        await harness.advance(61)
        await harness.until(lambda: harness.vhost.queues["q"].ready_count == 1)
        assert await harness.bodies("q") == [b"bad"]

    @pytest.mark.parametrize("kind", [None, "imaginary", "x-delayed-message"])
    async def test_invalid_delayed_type_is_refused(self, harness, kind):
        with pytest.raises(PreconditionFailed, match="x-delayed-type"):
            harness.exchange("d", "x-delayed-message", **({"delayed_type": kind} if kind else {}))

    async def test_delayed_message_is_routed_by_current_bindings(self, harness):
        self.make(harness)
        harness.publish("d", "new", b"x", headers={"x-delay": 1_000})
        await harness.settle()
        harness.bind("d", "q", "new")
        await harness.advance(2)
        assert await harness.bodies("q") == [b"x"]

    async def test_delayed_message_passes_another_exchange(self, harness):
        self.make(harness)
        harness.exchange("front", "fanout")
        harness.bind_exchange("front", "d", "k")
        harness.queue("direct")
        harness.bind("front", "direct")
        harness.publish("front", "k", b"x", headers={"x-delay": 1_000})
        await harness.settle()
        assert await harness.bodies("direct") == [b"x"]
        assert harness.vhost.queues["q"].ready_count == 0
        await harness.advance(2)
        assert await harness.bodies("q") == [b"x"]

    async def test_schedule_survives_a_restart(self, tmp_path):
        harness = await BrokerHarness.start(tmp_path)
        self.make(harness)
        for number in range(50):
            persistent = number % 2 == 0
            harness.publish("d", "k", b"%d" % number, persistent, headers={"x-delay": 60_000})
        async with running(await harness.restart(harness.clock.wall_ms() + 30_000)) as harness:
            await harness.settle()
            assert harness.vhost.queues["q"].ready_count == 0
            await harness.broker.resource_monitor.history_retention.apply()
            await harness.advance(31)
            await harness.until(lambda: harness.vhost.queues["q"].ready_count == 50)
            assert await harness.bodies("q") == [b"%d" % n for n in range(50)]
            await harness.advance(100)
            assert await harness.bodies("q") == []

    async def test_message_is_released_once_after_restart_and_snapshot(self, tmp_path):
        harness = await BrokerHarness.start(tmp_path)
        self.make(harness)
        for delay in (1_000, 5_000):
            harness.publish("d", "k", b"%d" % delay, headers={"x-delay": delay})
        await harness.settle()
        await harness.advance(2)
        await harness.until(lambda: harness.vhost.queues["q"].ready_count == 1)
        harness.broker.plugin_exchanges.delay_queues.get_or_create(
            harness.vhost, harness.vhost.exchanges["d"]
        ).snapshot()
        async with running(await harness.restart()) as harness:
            assert await harness.bodies("q") == [b"1000"]
            await harness.advance(5)
            await harness.until(lambda: harness.vhost.queues["q"].ready_count == 1)
            assert await harness.bodies("q") == [b"5000"]

    @pytest.mark.parametrize("snapshot", [False, True])
    async def test_bcc_keys_survive_a_restart(self, tmp_path, snapshot):
        harness = await BrokerHarness.start(tmp_path)
        self.make(harness)
        harness.queue("blind")
        harness.bind("d", "blind", "b c")
        harness.publish("d", "k", b"x", headers={"x-delay": 1_000, "BCC": ["b c"]})
        harness.publish("d", "k", b"y", headers={"x-delay": 1_000})
        await harness.settle()
        if snapshot:
            harness.broker.plugin_exchanges.delay_queues.get_or_create(
                harness.vhost, harness.vhost.exchanges["d"]
            ).snapshot()
        async with running(await harness.restart()) as harness:
            await harness.advance(2)
            await harness.until(lambda: harness.vhost.queues["q"].ready_count == 2)
            assert await harness.bodies("q") == [b"x", b"y"]
            assert await harness.bodies("blind") == [b"x"]

    async def test_scheduled_messages_are_listed_and_cancelled(self, harness):
        self.make(harness)
        for body, delay in ((b"b", 2_000), (b"a", 1_000), (b"c", 3_000)):
            harness.publish("d", "k", body, headers={"x-delay": delay})
        await harness.settle()
        delayed = harness.broker.plugin_exchanges.delay_queues.get_or_create(
            harness.vhost, harness.vhost.exchanges["d"]
        )
        schedule = await delayed.scheduled(0, 10)
        assert [scheduled.message.body for scheduled in schedule] == [b"a", b"b", b"c"]
        assert schedule[0].due_ms == harness.clock.wall_ms() + 1_000
        assert delayed.cancel(schedule[1].message.id)
        assert not delayed.cancel(schedule[1].message.id)
        await harness.advance(10)
        assert await harness.bodies("q") == [b"a", b"c"]

    async def test_delayed_messages_are_deleted_with_their_exchange(self, tmp_path):
        harness = await BrokerHarness.start(tmp_path)
        self.make(harness)
        harness.publish("d", "k", b"x", headers={"x-delay": 1_000})
        await harness.settle()
        harness.vhost.delete_exchange("d")
        async with running(await harness.restart()) as harness:
            assert harness.broker.plugin_exchanges.delay_queues.by_exchange == {}

    async def test_dead_letter_is_delayed(self, harness):
        self.make(harness)
        harness.queue("source", dead_letter_exchange="d", dead_letter_routing_key="k")
        harness.publish("", "source", b"x", headers={"x-delay": 1_000})
        await harness.take("source", outcome=Outcome.REJECT)
        assert await harness.bodies("q") == []
        await harness.advance(2)
        assert await harness.bodies("q") == [b"x"]


class TestPluginExchangeChains:
    def make(self, harness):
        harness.exchange("late", "x-delayed-message", delayed_type="fanout")
        harness.exchange("once", "x-message-deduplication")
        harness.queue("q")
        harness.bind_exchange("late", "once")
        harness.bind("once", "q")

    async def test_delayed_then_deduplicated(self, harness):
        self.make(harness)
        headers = {"x-delay": 1_000, "x-deduplication-header": "a"}
        for body in (b"1", b"2"):
            harness.publish("late", "", body, headers=headers)
        await harness.settle()
        await harness.advance(2)
        assert await harness.bodies("q") == [b"1"]

    async def test_queue_reached_by_several_paths_gets_a_message_once(self, harness):
        self.make(harness)
        harness.exchange("front", "fanout")
        harness.bind("front", "q")
        harness.bind_exchange("front", "once")
        harness.publish("front", "", b"x", headers={"x-deduplication-header": "a"})
        assert await harness.bodies("q") == [b"x"]

    async def test_cycle_of_plugin_exchanges_ends(self, harness):
        self.make(harness)
        harness.exchange("twice", "x-message-deduplication")
        harness.bind_exchange("once", "twice")
        harness.bind_exchange("twice", "once")
        harness.publish("once", "", b"x", headers={"x-deduplication-header": "a"})
        assert await harness.bodies("q") == [b"x"]


async def test_alternate_exchange_that_is_not_a_string_is_refused_but_recovered(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    spec = harness.spec("old", "fanout", {"alternate-exchange": 5})
    with pytest.raises(PreconditionFailed, match="invalid type for arg 'alternate-exchange'"):
        harness.vhost.declare_exchange(spec)
    harness.vhost.declare_exchange(spec, is_stored=True)
    await harness.settle()
    async with running(await harness.restart()) as harness:
        assert harness.vhost.exchanges["old"].alternate is None
        assert harness.publish("old", "k").routed is False
