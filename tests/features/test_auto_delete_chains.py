"""A chain of auto-delete exchanges is deleted with the queue at its end."""

from itertools import pairwise

from leveret.exchange import ExchangeSpec
from tests.features.harness import BrokerHarness

CHAIN_LENGTH = 1_500
"""More than the recursion limit."""


def chain(harness, queue, durable=True):
    names = [f"x{number}" for number in range(CHAIN_LENGTH)]
    for name in names:
        spec = ExchangeSpec(name, "fanout", durable, auto_delete=True)
        harness.vhost.declare_exchange(spec)
    for source, target in pairwise(names):
        harness.bind_exchange(source, target)
    harness.bind(names[-1], queue)
    return names


def existing(harness, names):
    return [name for name in names if name in harness.vhost.exchanges]


async def test_long_chain_is_deleted_with_its_queue_and_stays_deleted(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("end")
    names = chain(harness, "end")
    await harness.settle()
    harness.vhost.delete_queue("end")
    assert not existing(harness, names)
    restarted = await harness.restart()
    assert "end" not in restarted.vhost.queues
    assert not existing(restarted, names)
    await restarted.stop()


async def test_long_chain_is_deleted_with_its_last_binding_or_exchange(harness):
    for action in ("unbind", "delete"):
        queue = harness.queue("end", durable=False)
        names = chain(harness, "end", durable=False)
        (binding,) = harness.vhost.exchanges[names[-1]].bindings
        if action == "unbind":
            harness.vhost.unbind(names[-1], binding.destination, "", {})
        else:
            harness.vhost.delete_exchange(names[-1])
        assert not existing(harness, names)
        assert harness.vhost.queues["end"] is queue
        assert not list(harness.vhost.bindings())


async def test_exchange_with_another_binding_stays(harness):
    harness.queue("end")
    harness.queue("other")
    names = chain(harness, "end")
    harness.bind("x700", "other")
    harness.bind_exchange("x900", "x900")
    harness.vhost.delete_queue("end")
    assert existing(harness, names) == [f"x{number}" for number in range(901)]
