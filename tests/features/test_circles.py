"""Dead letters that come back to where they died."""

from queues import Outcome


def circle(hub, name, **arguments):
    return hub.queue(name, dead_letter_exchange="", dead_letter_routing_key=name, **arguments)


async def test_what_expires_does_not_come_back_to_the_same_queue(hub):
    queue = circle(hub, "q", message_ttl=1_000)
    hub.publish("", "q", b"x")
    hub.publish("", "q", b"with headers", headers={"CC": ["q"]})
    await hub.advance(2)
    assert (queue.ready_count, queue.counters.published) == (0, 2)


async def test_what_is_rejected_does(hub):
    circle(hub, "q")
    hub.publish("", "q", b"x")
    for _ in range(2):
        await hub.take("q", outcome=Outcome.REJECT)
    (message,) = await hub.take("q")
    assert message.headers()["x-death"][0]["count"] == 2


async def test_a_full_queue_may_be_its_own_grave(hub):
    queue = circle(hub, "q", max_length=1_000)
    for number in range(3_000):
        hub.publish("", "q", b"%d" % number)
    await hub.settle()
    assert queue.ready_count == 1_000
    assert await hub.bodies("q") == [b"%d" % number for number in range(2_000, 3_000)]


async def test_two_full_queues_may_be_each_others_graves(hub):
    for name, other in (("a", "b"), ("b", "a")):
        hub.queue(name, max_length=500, dead_letter_exchange="", dead_letter_routing_key=other)
    for name in "aba":
        for number in range(1_000):
            hub.publish("", name, b"%d" % number)
            hub.broker.turn.end()
    await hub.settle()
    assert [hub.vhost.queues[name].ready_count for name in "ab"] == [500, 500]


async def test_a_deleted_queue_leaves_its_stuck_dead_letters_alone(hub, caplog):
    hub.queue("grave", max_length=1, overflow="reject-publish")
    queue = hub.queue("q", dead_letter_exchange="", dead_letter_routing_key="grave")
    for body in (b"1", b"2"):
        hub.publish("", "q", body)
    await hub.take("q", outcome=Outcome.REJECT)
    assert queue.unacked_count == 1
    hub.vhost.delete_queue("q")
    assert await hub.bodies("grave") == [b"1"]
    await hub.advance(2)
    assert hub.vhost.queues["grave"].ready_count == 0
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_dead_letters_that_lead_to_one_another_do_not_multiply_without_end(hub, monkeypatch):
    """Of one message there were as many as there are ways through the queues."""
    names = [f"one {number}" for number in range(6)]
    hub.exchange("dead", "fanout")
    for name in names:
        hub.queue(name, durable=False, message_ttl=1_000, dead_letter_exchange="dead")
        hub.bind("dead", name)
    for most, deaths in ((100, (1, 5, 20, 0)), (10**6, (1, 5, 20, 60, 120, 120, 0))):
        monkeypatch.setattr("leveret.broker.dead_letters.MOST_COPIES", most)
        hub.publish("", names[0], b"x", persistent=False)
        held = []
        for _ in deaths:
            held.append(sum(hub.vhost.queues[name].ready_count for name in names))
            await hub.advance(2)
        assert tuple(held) == deaths


async def test_what_is_rejected_may_go_on_to_many_queues_again_and_again(hub, monkeypatch):
    monkeypatch.setattr("leveret.broker.dead_letters.MOST_COPIES", 3)
    hub.exchange("dead", "fanout")
    for name in ("one", "other"):
        hub.queue(name, durable=False, dead_letter_exchange="dead")
        hub.bind("dead", name)
    hub.publish("", "one", b"x", persistent=False)
    for _ in range(5):
        assert len(await hub.take("one", outcome=Outcome.REJECT)) == 1
        assert len(await hub.take("other")) == 1
