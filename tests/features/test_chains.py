"""Auto-delete exchanges bound in a row go with what the last of them leads to."""

from itertools import pairwise

from exchange import ExchangeSpec
from tests.features.hub import Hub

LONG = 1_500
"""More than calls may nest."""


def chain(hub, queue, durable=True):
    names = [f"x{number}" for number in range(LONG)]
    for name in names:
        spec = ExchangeSpec(name, "fanout", durable, auto_delete=True)
        hub.vhost.declare_exchange(spec)
    for source, target in pairwise(names):
        hub.bind_exchange(source, target)
    hub.bind(names[-1], queue)
    return names


def left(hub, names):
    return [name for name in names if name in hub.vhost.exchanges]


async def test_a_long_chain_goes_with_its_queue_and_stays_gone(tmp_path):
    hub = await Hub.start(tmp_path)
    hub.queue("end")
    names = chain(hub, "end")
    await hub.settle()
    hub.vhost.delete_queue("end")
    assert not left(hub, names)
    again = await hub.restart()
    assert "end" not in again.vhost.queues
    assert not left(again, names)
    await again.stop()


async def test_a_long_chain_goes_with_its_last_binding_or_exchange(hub):
    for way in ("unbind", "delete"):
        queue = hub.queue("end", durable=False)
        names = chain(hub, "end", durable=False)
        (binding,) = hub.vhost.exchanges[names[-1]].bindings
        if way == "unbind":
            hub.vhost.unbind(names[-1], binding.destination, "", {})
        else:
            hub.vhost.delete_exchange(names[-1])
        assert not left(hub, names)
        assert hub.vhost.queues["end"] is queue
        assert not list(hub.vhost.bindings())


async def test_what_else_leads_somewhere_stays(hub):
    hub.queue("end")
    hub.queue("other")
    names = chain(hub, "end")
    hub.bind("x700", "other")
    hub.bind_exchange("x900", "x900")
    hub.vhost.delete_queue("end")
    assert left(hub, names) == [f"x{number}" for number in range(901)]
