"""Exchange types beyond the four: who gets a message, how often, and when."""

from collections import Counter

import pytest

from leveret.broker import stations
from leveret.model.errors import PreconditionFailed
from queues import Outcome
from tests.features.hub import Hub
from tests.features.test_over_time import running


def spread(hub, names):
    return {name: hub.vhost.queues[name].ready_count for name in names}


class TestConsistentHash:
    def fan(self, hub, weights, **arguments):
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        hub.vhost.declare_exchange(hub.spec("h", "x-consistent-hash", named))
        for name, weight in weights.items():
            hub.queue(name)
            hub.bind("h", name, str(weight))

    async def test_equal_keys_go_together_and_weights_hold(self, hub):
        weights = {"a": 1, "b": 1, "c": 2}
        self.fan(hub, weights)
        for number in range(4_000):
            assert hub.publish("h", f"key-{number}").routed
        counts = spread(hub, weights)
        assert sum(counts.values()) == 4_000
        assert 1_700 < counts["c"] < 2_300
        assert 750 < counts["a"] < 1_250
        before = spread(hub, weights)
        for _ in range(10):
            hub.publish("h", "same")
        moved = {n: c - before[n] for n, c in spread(hub, weights).items()}
        assert sorted(moved.values()) == [0, 0, 10]

    async def test_a_new_queue_moves_only_its_share(self, hub):
        self.fan(hub, {"a": 1, "b": 1})
        matcher = hub.vhost.exchanges["h"].matcher
        keys = [f"key-{n}" for n in range(1_000)]
        before = {key: next(iter(matcher.match(key, {}))).name for key in keys}
        hub.queue("c")
        hub.bind("h", "c", "1")
        after = {key: next(iter(matcher.match(key, {}))).name for key in keys}
        assert all(after[key] in (before[key], "c") for key in keys)
        assert 230 < Counter(after.values())["c"] < 440

    @pytest.mark.parametrize(
        ("argument", "properties"),
        [
            ({"hash_header": "who"}, lambda n: {"headers": {"who": f"u{n}"}}),
            ({"hash_property": "message_id"}, lambda n: {"message_id": f"m{n}"}),
            ({"hash_property": "correlation_id"}, lambda n: {"correlation_id": f"c{n}"}),
            ({"hash_property": "timestamp"}, lambda n: {"timestamp": 1_700_000_000 + n}),
        ],
    )
    async def test_by_header_or_property(self, hub, argument, properties):
        self.fan(hub, {"a": 1, "b": 1}, **argument)
        for number in range(100):
            hub.publish("h", "all the same", **properties(number))
        counts = spread(hub, "ab")
        assert min(counts.values()) > 20
        before = counts
        for _ in range(5):
            hub.publish("h", "another", **properties(1))
        assert sorted(spread(hub, "ab")[n] - before[n] for n in "ab") == [0, 5]

    async def test_wrong_declarations_are_refused(self, hub):
        with pytest.raises(PreconditionFailed, match="mutually exclusive"):
            self.fan(hub, {}, hash_header="a", hash_property="message_id")
        with pytest.raises(PreconditionFailed, match="unsupported property"):
            self.fan(hub, {}, hash_property="app_id")
        with pytest.raises(PreconditionFailed, match="whole number greater than 0"):
            self.fan(hub, {"a": "heavy"})


async def test_modulus_hash_spreads_and_stays(hub):
    hub.exchange("m", "x-modulus-hash")
    for name in "abc":
        hub.queue(name)
        hub.bind("m", name)
    for number in range(300):
        hub.publish("m", f"key-{number % 30}")
    assert sum(spread(hub, "abc").values()) == 300
    assert all(count % 10 == 0 and count for count in spread(hub, "abc").values())


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
async def test_random_gives_each_message_to_one(hub, kind):
    hub.exchange("r", kind)
    assert not hub.publish("r", "k").routed
    for name in "ab":
        hub.queue(name)
        hub.bind("r", name)
    for _ in range(200):
        hub.publish("r", "k")
    assert sum(spread(hub, "ab").values()) == 200
    assert min(spread(hub, "ab").values()) > 50


class TestRecentHistory:
    async def test_a_late_queue_gets_the_last_ones(self, hub):
        hub.exchange("x", "x-recent-history", recent_history_length=3)
        for number in range(5):
            hub.publish("x", "k", b"%d" % number)
        hub.queue("late")
        hub.bind("x", "late")
        hub.publish("x", "k", b"5")
        await hub.settle()
        assert await hub.bodies("late") == [b"2", b"3", b"4", b"5"]

    async def test_twenty_by_default_and_not_those_that_do_not_want(self, hub):
        hub.exchange("x", "x-recent-history")
        for number in range(30):
            hub.publish("x", "k", b"%d" % number)
        hub.publish("x", "k", b"no", headers={"x-recent-history-no-store": True})
        hub.queue("late")
        hub.bind("x", "late")
        assert await hub.bodies("late") == [b"%d" % n for n in range(10, 30)]

    @pytest.mark.parametrize("between", ["nothing", "fanout", "topic"])
    async def test_no_more_than_may_be_sent_again_at_once(self, hub, monkeypatch, between):
        monkeypatch.setattr(stations, "MOST_REPLAYED", 12)
        hub.exchange("x", "x-recent-history", recent_history_length=100_000)
        for number in range(30):
            hub.publish("x", f"{number}.k", b"%d" % number)
        queues = {"nothing": ["a"], "fanout": ["a", "b", "c"], "topic": ["a"]}[between]
        for name in queues:
            hub.queue(name)
        if between == "nothing":
            hub.bind("x", "a")
        else:
            hub.exchange("y", between)
            for name in queues:
                hub.bind("y", name, "#.k")
            hub.bind_exchange("x", "y")
        hub.publish("x", "k", b"30")
        await hub.settle()
        count = {"nothing": 12, "fanout": 3, "topic": 5}[between]
        for name in queues:
            assert await hub.bodies(name) == [b"%d" % n for n in range(30 - count, 31)]

    async def test_a_wrong_length_is_refused(self, hub):
        with pytest.raises(PreconditionFailed, match="x-recent-history-length"):
            hub.exchange("x", "x-recent-history", recent_history_length=0)


class TestDelayed:
    def make(self, hub, kind="direct"):
        hub.exchange("d", "x-delayed-message", delayed_type=kind)
        hub.queue("q")
        hub.bind("d", "q", "k")

    async def test_due_in_order_of_time(self, hub):
        self.make(hub)
        for body, delay in ((b"late", 3_000), (b"soon", 1_000), (b"now", 0)):
            hub.publish("d", "k", body, headers={"x-delay": delay, "mine": 1})
        hub.publish("d", "k", b"plain")
        await hub.settle()
        assert await hub.bodies("q") == [b"now", b"plain"]
        await hub.advance(1.5)
        (message,) = await hub.take("q")
        assert message.body == b"soon"
        assert message.headers() == {"x-delay": -1_000, "mine": 1}
        assert (message.exchange, message.routing_key) == ("d", "k")
        await hub.advance(2)
        assert await hub.bodies("q") == [b"late"]

    async def test_what_waits_is_not_counted_as_gone(self, hub):
        self.make(hub)
        hub.queue("r")
        hub.bind("d", "r", "k")
        hub.exchange("before", "fanout")
        hub.bind_exchange("before", "d")
        delayed, before = hub.vhost.exchanges["d"], hub.vhost.exchanges["before"]
        for exchange, key in (("d", "k"), ("d", "nobody's"), ("before", "k"), ("d", "k")):
            hub.publish(exchange, key, headers={"x-delay": 1_000})
        await hub.settle()
        assert (delayed.published_in, delayed.published_out) == (3, 0)
        assert (before.published_in, before.published_out) == (1, 1)
        held = hub.broker.stations.delays.by_exchange[delayed]
        last = (await held.scheduled(3, 1))[0].message.id
        assert held.cancel(last)
        await hub.advance(1.5)
        await hub.until(lambda: hub.vhost.queues["r"].ready_count == 2)
        assert (delayed.published_in, delayed.published_out) == (3, 4)

    async def test_what_waited_through_a_restart_is_counted_when_it_goes(self, tmp_path):
        hub = await Hub.start(tmp_path)
        self.make(hub)
        hub.publish("d", "nobody's", headers={"x-delay": 1_000})
        await hub.settle()
        async with running(await hub.restart()) as hub:
            await hub.advance(1.5)
            delayed = hub.vhost.exchanges["d"]
            held = hub.broker.stations.delays.by_exchange[delayed]
            await hub.until(lambda: len(held) == 0)
            assert delayed.published_out == 0

    async def test_the_type_behind_it_decides(self, hub):
        self.make(hub, "topic")
        hub.bind("d", "q", "a.#")
        hub.publish("d", "a.b", b"x", headers={"x-delay": 10})
        hub.publish("d", "b.a", b"y", headers={"x-delay": 10})
        await hub.settle()
        await hub.advance(1)
        assert await hub.bodies("q") == [b"x"]

    async def test_copies_that_are_no_keys_hold_nobody_up(self, hub):
        self.make(hub, "topic")
        hub.bind("d", "q", "#")
        hub.publish("d", "a", b"odd", headers={"x-delay": 10, "CC": [1, None, "b"]})
        hub.publish("d", "a", b"usual", headers={"x-delay": 10})
        await hub.advance(1)
        await hub.until(lambda: hub.vhost.queues["q"].ready_count == 2)
        assert await hub.bodies("q") == [b"odd", b"usual"]

    async def test_blind_copies_go_on_too_and_nobody_sees_them(self, hub):
        self.make(hub)
        for name in ("seen", "blind"):
            hub.queue(name)
            hub.bind("d", name, name)
        headers = {"x-delay": 10, "CC": ["seen"], "BCC": ["blind", "k"]}
        hub.publish("d", "k", b"copied", headers=headers)
        hub.publish("d", "k", b"alone", headers={"x-delay": 10})
        await hub.advance(1)
        await hub.until(lambda: hub.vhost.queues["q"].ready_count == 2)
        assert await hub.bodies("q") == [b"copied", b"alone"]
        for name in ("seen", "blind"):
            (message,) = await hub.take(name)
            assert message.headers() == {"x-delay": -10, "CC": ["seen"]}

    async def test_one_that_cannot_go_on_comes_later(self, hub, monkeypatch):
        self.make(hub)
        delays = hub.broker.stations.delays.of(hub.vhost, hub.vhost.exchanges["d"])
        go_on = delays._go_on

        def fails(stored):
            if stored.body == b"bad":
                raise ValueError("as if there were a bug")
            return go_on(stored)

        monkeypatch.setattr(delays, "_go_on", fails)
        for body in (b"bad", b"good"):
            hub.publish("d", "k", body, headers={"x-delay": 10})
        await hub.advance(1)
        await hub.until(lambda: hub.vhost.queues["q"].ready_count == 1)
        assert await hub.bodies("q") == [b"good"]
        monkeypatch.setattr(delays, "_go_on", go_on)
        await hub.advance(61)
        await hub.until(lambda: hub.vhost.queues["q"].ready_count == 1)
        assert await hub.bodies("q") == [b"bad"]

    @pytest.mark.parametrize("kind", [None, "imaginary", "x-delayed-message"])
    async def test_a_wrong_type_is_refused(self, hub, kind):
        with pytest.raises(PreconditionFailed, match="x-delayed-type"):
            hub.exchange("d", "x-delayed-message", **({"delayed_type": kind} if kind else {}))

    async def test_routed_by_the_bindings_of_the_moment_it_is_due(self, hub):
        self.make(hub)
        hub.publish("d", "new", b"x", headers={"x-delay": 1_000})
        await hub.settle()
        hub.bind("d", "q", "new")
        await hub.advance(2)
        assert await hub.bodies("q") == [b"x"]

    async def test_through_another_exchange(self, hub):
        self.make(hub)
        hub.exchange("front", "fanout")
        hub.bind_exchange("front", "d", "k")
        hub.queue("direct")
        hub.bind("front", "direct")
        hub.publish("front", "k", b"x", headers={"x-delay": 1_000})
        await hub.settle()
        assert await hub.bodies("direct") == [b"x"]
        assert hub.vhost.queues["q"].ready_count == 0
        await hub.advance(2)
        assert await hub.bodies("q") == [b"x"]

    async def test_schedule_survives_a_restart(self, tmp_path):
        hub = await Hub.start(tmp_path)
        self.make(hub)
        for number in range(50):
            persistent = number % 2 == 0
            hub.publish("d", "k", b"%d" % number, persistent, headers={"x-delay": 60_000})
        async with running(await hub.restart(hub.clock.wall_ms() + 30_000)) as hub:
            await hub.settle()
            assert hub.vhost.queues["q"].ready_count == 0
            await hub.broker.upkeep.sweep()
            await hub.advance(31)
            await hub.until(lambda: hub.vhost.queues["q"].ready_count == 50)
            assert await hub.bodies("q") == [b"%d" % n for n in range(50)]
            await hub.advance(100)
            assert await hub.bodies("q") == []

    async def test_released_once_over_a_restart_and_a_snapshot(self, tmp_path):
        hub = await Hub.start(tmp_path)
        self.make(hub)
        for delay in (1_000, 5_000):
            hub.publish("d", "k", b"%d" % delay, headers={"x-delay": delay})
        await hub.settle()
        await hub.advance(2)
        await hub.until(lambda: hub.vhost.queues["q"].ready_count == 1)
        hub.broker.stations.delays.of(hub.vhost, hub.vhost.exchanges["d"]).snapshot()
        async with running(await hub.restart()) as hub:
            assert await hub.bodies("q") == [b"1000"]
            await hub.advance(5)
            await hub.until(lambda: hub.vhost.queues["q"].ready_count == 1)
            assert await hub.bodies("q") == [b"5000"]

    @pytest.mark.parametrize("snapshot", [False, True])
    async def test_blind_copies_survive_a_restart(self, tmp_path, snapshot):
        hub = await Hub.start(tmp_path)
        self.make(hub)
        hub.queue("blind")
        hub.bind("d", "blind", "b c")
        hub.publish("d", "k", b"x", headers={"x-delay": 1_000, "BCC": ["b c"]})
        hub.publish("d", "k", b"y", headers={"x-delay": 1_000})
        await hub.settle()
        if snapshot:
            hub.broker.stations.delays.of(hub.vhost, hub.vhost.exchanges["d"]).snapshot()
        async with running(await hub.restart()) as hub:
            await hub.advance(2)
            await hub.until(lambda: hub.vhost.queues["q"].ready_count == 2)
            assert await hub.bodies("q") == [b"x", b"y"]
            assert await hub.bodies("blind") == [b"x"]

    async def test_listed_and_cancelled(self, hub):
        self.make(hub)
        for body, delay in ((b"b", 2_000), (b"a", 1_000), (b"c", 3_000)):
            hub.publish("d", "k", body, headers={"x-delay": delay})
        await hub.settle()
        delayed = hub.broker.stations.delays.of(hub.vhost, hub.vhost.exchanges["d"])
        seen = await delayed.scheduled(0, 10)
        assert [one.message.body for one in seen] == [b"a", b"b", b"c"]
        assert seen[0].due_ms == hub.clock.wall_ms() + 1_000
        assert delayed.cancel(seen[1].message.id)
        assert not delayed.cancel(seen[1].message.id)
        await hub.advance(10)
        assert await hub.bodies("q") == [b"a", b"c"]

    async def test_deleting_the_exchange_forgets_them(self, tmp_path):
        hub = await Hub.start(tmp_path)
        self.make(hub)
        hub.publish("d", "k", b"x", headers={"x-delay": 1_000})
        await hub.settle()
        hub.vhost.delete_exchange("d")
        async with running(await hub.restart()) as hub:
            assert hub.broker.stations.delays.by_exchange == {}

    async def test_a_dead_letter_can_be_delayed(self, hub):
        self.make(hub)
        hub.queue("source", dead_letter_exchange="d", dead_letter_routing_key="k")
        hub.publish("", "source", b"x", headers={"x-delay": 1_000})
        await hub.take("source", outcome=Outcome.REJECT)
        assert await hub.bodies("q") == []
        await hub.advance(2)
        assert await hub.bodies("q") == [b"x"]


class TestStationsInARow:
    def make(self, hub):
        hub.exchange("late", "x-delayed-message", delayed_type="fanout")
        hub.exchange("once", "x-message-deduplication")
        hub.queue("q")
        hub.bind_exchange("late", "once")
        hub.bind("once", "q")

    async def test_delayed_then_deduplicated(self, hub):
        self.make(hub)
        headers = {"x-delay": 1_000, "x-deduplication-header": "a"}
        for body in (b"1", b"2"):
            hub.publish("late", "", body, headers=headers)
        await hub.settle()
        await hub.advance(2)
        assert await hub.bodies("q") == [b"1"]

    async def test_a_queue_that_several_ways_lead_to_gets_it_once(self, hub):
        self.make(hub)
        hub.exchange("front", "fanout")
        hub.bind("front", "q")
        hub.bind_exchange("front", "once")
        hub.publish("front", "", b"x", headers={"x-deduplication-header": "a"})
        assert await hub.bodies("q") == [b"x"]

    async def test_a_circle_ends(self, hub):
        self.make(hub)
        hub.exchange("twice", "x-message-deduplication")
        hub.bind_exchange("once", "twice")
        hub.bind_exchange("twice", "once")
        hub.publish("once", "", b"x", headers={"x-deduplication-header": "a"})
        assert await hub.bodies("q") == [b"x"]


async def test_an_alternate_that_is_no_text_is_refused_and_taken_up_where_it_is_stored(tmp_path):
    hub = await Hub.start(tmp_path)
    spec = hub.spec("old", "fanout", {"alternate-exchange": 5})
    with pytest.raises(PreconditionFailed, match="invalid type for arg 'alternate-exchange'"):
        hub.vhost.declare_exchange(spec)
    hub.vhost.declare_exchange(spec, is_stored=True)
    await hub.settle()
    async with running(await hub.restart()) as hub:
        assert hub.vhost.exchanges["old"].alternate is None
        assert hub.publish("old", "k").routed is False
