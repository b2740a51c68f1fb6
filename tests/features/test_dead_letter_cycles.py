"""Dead-letter cycles: which messages may return to the queue they died in."""

from leveret.queues.entry import Outcome


def self_dead_lettering(harness, name, **arguments):
    return harness.queue(name, dead_letter_exchange="", dead_letter_routing_key=name, **arguments)


async def test_expired_message_does_not_return_to_the_same_queue(harness):
    queue = self_dead_lettering(harness, "q", message_ttl=1_000)
    harness.publish("", "q", b"x")
    harness.publish("", "q", b"with headers", headers={"CC": ["q"]})
    await harness.advance(2)
    assert (queue.ready_count, queue.counters.published) == (0, 2)


async def test_rejected_message_returns_to_the_same_queue(harness):
    self_dead_lettering(harness, "q")
    harness.publish("", "q", b"x")
    for _ in range(2):
        await harness.take("q", outcome=Outcome.REJECT)
    (message,) = await harness.take("q")
    assert message.headers()["x-death"][0]["count"] == 2


async def test_full_queue_may_dead_letter_to_itself(harness):
    queue = self_dead_lettering(harness, "q", max_length=1_000)
    for number in range(3_000):
        harness.publish("", "q", b"%d" % number)
    await harness.settle()
    assert queue.ready_count == 1_000
    assert await harness.bodies("q") == [b"%d" % number for number in range(2_000, 3_000)]


async def test_two_full_queues_may_dead_letter_to_each_other(harness):
    for name, other in (("a", "b"), ("b", "a")):
        harness.queue(name, max_length=500, dead_letter_exchange="", dead_letter_routing_key=other)
    for name in "aba":
        for number in range(1_000):
            harness.publish("", name, b"%d" % number)
            harness.broker.scheduler.run_tick()
    await harness.settle()
    assert [harness.vhost.queues[name].ready_count for name in "ab"] == [500, 500]


async def test_deleted_queue_does_not_retry_stuck_dead_letters(harness, caplog):
    harness.queue("dlq", max_length=1, overflow="reject-publish")
    queue = harness.queue("q", dead_letter_exchange="", dead_letter_routing_key="dlq")
    for body in (b"1", b"2"):
        harness.publish("", "q", body)
    await harness.take("q", outcome=Outcome.REJECT)
    assert queue.unacked_count == 1
    harness.vhost.delete_queue("q")
    assert await harness.bodies("dlq") == [b"1"]
    await harness.advance(2)
    assert harness.vhost.queues["dlq"].ready_count == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_copies_in_a_dead_letter_cycle_are_bounded(harness, monkeypatch):
    """Without a limit there would be a copy for every path through the queues."""
    names = [f"q{number}" for number in range(6)]
    harness.exchange("dead", "fanout")
    for name in names:
        harness.queue(name, durable=False, message_ttl=1_000, dead_letter_exchange="dead")
        harness.bind("dead", name)
    for max_copies, expected in ((100, (1, 5, 20, 0)), (10**6, (1, 5, 20, 60, 120, 120, 0))):
        monkeypatch.setattr("leveret.broker.publishing.dead_letters.MAX_COPIES", max_copies)
        harness.publish("", names[0], b"x", persistent=False)
        counts = []
        for _ in expected:
            counts.append(sum(harness.vhost.queues[name].ready_count for name in names))
            await harness.advance(2)
        assert tuple(counts) == expected


async def test_copies_of_rejected_messages_are_not_limited(harness, monkeypatch):
    monkeypatch.setattr("leveret.broker.publishing.dead_letters.MAX_COPIES", 3)
    harness.exchange("dead", "fanout")
    for name in ("first", "second"):
        harness.queue(name, durable=False, dead_letter_exchange="dead")
        harness.bind("dead", name)
    harness.publish("", "first", b"x", persistent=False)
    for _ in range(5):
        assert len(await harness.take("first", outcome=Outcome.REJECT)) == 1
        assert len(await harness.take("second")) == 1
