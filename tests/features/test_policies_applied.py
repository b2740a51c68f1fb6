"""Policies and operator policies apply to existing queues, and so does their removal."""

import pytest

from leveret.broker.policies.policies import Policy
from leveret.queues.entry import Outcome


def put(harness, operator=False, **definition):
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    name = "operator" if operator else "user"
    harness.broker.policies.put(Policy("/", name, "^q$", named, "queues", 0, operator))


def drop(harness, operator=False):
    policy = harness.broker.policies.get("/", "operator" if operator else "user", operator)
    harness.broker.policies.delete(policy)


async def test_message_ttl_applies_until_the_policy_is_deleted(harness):
    harness.queue("q")
    put(harness, message_ttl=1_000)
    harness.publish("", "q", b"expires")
    await harness.advance(2)
    assert harness.vhost.queues["q"].ready_count == 0
    drop(harness)
    harness.publish("", "q", b"lasting")
    await harness.advance(100)
    assert await harness.bodies("q") == [b"lasting"]


async def test_expires_deletes_an_existing_queue(harness):
    harness.queue("q")
    put(harness, expires=1_000)
    await harness.advance(0.5)
    assert "q" in harness.vhost.queues
    await harness.advance(1)
    assert "q" not in harness.vhost.queues


@pytest.mark.parametrize(
    ("limits", "remaining"),
    [({"max_length": 2}, [b"cc", b"dd"]), ({"max_length_bytes": 3}, [b"dd"])],
)
async def test_max_length_drops_messages_at_once(harness, limits, remaining):
    harness.queue("q")
    for body in (b"aa", b"bb", b"cc", b"dd"):
        harness.publish("", "q", body)
    put(harness, **limits)
    assert await harness.bodies("q") == remaining


async def test_overflow_applies_until_the_policy_is_deleted(harness):
    harness.queue("q")
    put(harness, max_length=1, overflow="reject-publish")
    assert [harness.publish("", "q").accepted for _ in range(2)] == [True, False]
    drop(harness)
    assert harness.publish("", "q").accepted


async def test_dead_letter_policy_applies_without_dead_letter_arguments(harness):
    for name in ("dlq", "own"):
        harness.queue(name)
    harness.queue("q")
    put(harness, dead_letter_exchange="", dead_letter_routing_key="dlq")
    harness.publish("", "q", b"x")
    await harness.take("q", outcome=Outcome.REJECT)
    assert await harness.bodies("dlq") == [b"x"]
    harness.vhost.delete_queue("q")
    harness.queue("q", dead_letter_exchange="", dead_letter_routing_key="own")
    harness.publish("", "q", b"y")
    await harness.take("q", outcome=Outcome.REJECT)
    assert (await harness.bodies("dlq"), await harness.bodies("own")) == ([], [b"y"])


async def test_delivery_limit_of_a_policy_applies_to_an_unlimited_queue(harness):
    harness.queue("q", delivery_limit=-1)
    put(harness, operator=True, delivery_limit=1)
    harness.publish("", "q", b"x")
    for ready in (1, 0):
        await harness.take("q", outcome=Outcome.REQUEUE)
        assert harness.vhost.queues["q"].ready_count == ready


async def test_quorum_queue_has_a_default_delivery_limit(harness):
    harness.queue("q", queue_type="quorum")
    harness.publish("", "q", b"x")
    for _ in range(20):
        assert len(await harness.take("q", outcome=Outcome.REQUEUE)) == 1
    assert len(await harness.take("q", outcome=Outcome.REQUEUE)) == 1
    assert harness.vhost.queues["q"].ready_count == 0


async def test_smallest_of_argument_policy_and_operator_policy_applies(harness):
    harness.queue("q", max_length=5)
    put(harness, max_length=4)
    put(harness, operator=True, max_length=3)
    for number in range(9):
        harness.publish("", "q", b"%d" % number)
    assert harness.vhost.queues["q"].ready_count == 3
    effective = harness.broker.policies.effective("/", "q", "classic")
    assert (effective.policy, effective.operator_policy) == ("user", "operator")
    assert effective.definition == {"max-length": 3}
    drop(harness, operator=True)
    harness.publish("", "q", b"9")
    assert harness.vhost.queues["q"].ready_count == 4
