"""Policies and operator policies take hold of queues that exist, and let go of them."""

import pytest

from leveret.broker.policies import Policy
from queues import Outcome


def put(hub, operator=False, **definition):
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    name = "operator" if operator else "user"
    hub.broker.policies.put(Policy("/", name, "^q$", named, "queues", 0, operator))


def drop(hub, operator=False):
    policy = hub.broker.policies.get("/", "operator" if operator else "user", operator)
    hub.broker.policies.delete(policy)


async def test_message_ttl(hub):
    hub.queue("q")
    put(hub, message_ttl=1_000)
    hub.publish("", "q", b"brief")
    await hub.advance(2)
    assert hub.vhost.queues["q"].ready_count == 0
    drop(hub)
    hub.publish("", "q", b"lasting")
    await hub.advance(100)
    assert await hub.bodies("q") == [b"lasting"]


async def test_expires(hub):
    hub.queue("q")
    put(hub, expires=1_000)
    await hub.advance(0.5)
    assert "q" in hub.vhost.queues
    await hub.advance(1)
    assert "q" not in hub.vhost.queues


@pytest.mark.parametrize(
    ("limits", "left"),
    [({"max_length": 2}, [b"cc", b"dd"]), ({"max_length_bytes": 3}, [b"dd"])],
)
async def test_length_drops_at_once(hub, limits, left):
    hub.queue("q")
    for body in (b"aa", b"bb", b"cc", b"dd"):
        hub.publish("", "q", body)
    put(hub, **limits)
    assert await hub.bodies("q") == left


async def test_overflow(hub):
    hub.queue("q")
    put(hub, max_length=1, overflow="reject-publish")
    assert [hub.publish("", "q").taken for _ in range(2)] == [True, False]
    drop(hub)
    assert hub.publish("", "q").taken


async def test_dead_letters_where_the_arguments_name_no_target(hub):
    for name in ("grave", "own"):
        hub.queue(name)
    hub.queue("q")
    put(hub, dead_letter_exchange="", dead_letter_routing_key="grave")
    hub.publish("", "q", b"x")
    await hub.take("q", outcome=Outcome.REJECT)
    assert await hub.bodies("grave") == [b"x"]
    hub.vhost.delete_queue("q")
    hub.queue("q", dead_letter_exchange="", dead_letter_routing_key="own")
    hub.publish("", "q", b"y")
    await hub.take("q", outcome=Outcome.REJECT)
    assert (await hub.bodies("grave"), await hub.bodies("own")) == ([], [b"y"])


async def test_delivery_limit_also_where_one_side_has_none(hub):
    hub.queue("q", delivery_limit=-1)
    put(hub, operator=True, delivery_limit=1)
    hub.publish("", "q", b"x")
    for left in (1, 0):
        await hub.take("q", outcome=Outcome.REQUEUE)
        assert hub.vhost.queues["q"].ready_count == left


async def test_a_quorum_queue_has_a_limit_by_default(hub):
    hub.queue("q", queue_type="quorum")
    hub.publish("", "q", b"x")
    for _ in range(20):
        assert len(await hub.take("q", outcome=Outcome.REQUEUE)) == 1
    assert len(await hub.take("q", outcome=Outcome.REQUEUE)) == 1
    assert hub.vhost.queues["q"].ready_count == 0


async def test_the_smallest_of_argument_policy_and_operator_holds(hub):
    hub.queue("q", max_length=5)
    put(hub, max_length=4)
    put(hub, operator=True, max_length=3)
    for number in range(9):
        hub.publish("", "q", b"%d" % number)
    assert hub.vhost.queues["q"].ready_count == 3
    shown = hub.broker.policies.effective("/", "q", "classic")
    assert (shown.policy, shown.operator_policy) == ("user", "operator")
    assert shown.definition == {"max-length": 3}
    drop(hub, operator=True)
    hub.publish("", "q", b"9")
    assert hub.vhost.queues["q"].ready_count == 4
