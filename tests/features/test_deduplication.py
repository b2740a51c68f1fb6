"""Messages with a key that has been seen are confirmed and not enqueued."""

import pytest

from leveret.model.errors import PreconditionFailed
from leveret.model.store import ParameterDefinition
from tests.features.hub import Hub
from tests.features.test_over_time import running


def key(name):
    return {"headers": {"x-deduplication-header": name}}


class On:
    """The same feature on a queue or on an exchange."""

    def __init__(self, hub, where):
        self.hub, self.exchange = hub, "" if where == "queue" else "once"

    def make(self, **arguments):
        if self.exchange:
            self.hub.exchange("once", "x-message-deduplication", **arguments)
            self.hub.queue("q")
            self.hub.bind("once", "q")
        else:
            self.hub.queue("q", message_deduplication=True, **arguments)

    def publish(self, body, name=None, **more):
        properties = key(name) if name is not None else {}
        properties.update(more)
        return self.hub.publish(self.exchange, "q", body, **properties)


@pytest.fixture(params=["queue", "exchange"])
def where(request):
    return request.param


async def test_the_first_of_a_key_wins(hub, where):
    on = On(hub, where)
    on.make()
    for body, name in ((b"1", "a"), (b"2", "a"), (b"3", "b"), (b"4", None), (b"5", None)):
        assert on.publish(body, name).taken
    await hub.settle()
    assert await hub.bodies("q") == [b"1", b"3", b"4", b"5"]
    on.publish(b"after the ack", "a")
    assert await hub.bodies("q") == []


async def test_keys_of_other_types_are_keys_of_their_own(hub, where):
    on = On(hub, where)
    on.make()
    values = (1, "1", 2, "int 1", "str int 1", "bool True", True, 1.5, "float 1.5")
    for value in (*values, *values):
        on.publish(repr(value).encode(), value)
    assert await hub.bodies("q") == [repr(value).encode() for value in values]


async def test_the_oldest_key_is_forgotten_beyond_the_size(hub, where):
    on = On(hub, where)
    on.make(cache_size=2)
    for name in "abca":
        on.publish(name.encode(), name)
    assert await hub.bodies("q") == [b"a", b"b", b"c", b"a"]


async def test_keys_end(hub, where):
    on = On(hub, where)
    on.make(cache_ttl=1_000)
    on.publish(b"1", "a")
    await hub.advance(0.5)
    on.publish(b"2", "a")
    await hub.advance(0.6)
    on.publish(b"3", "a")
    assert await hub.bodies("q") == [b"1", b"3"]


async def test_keys_survive_a_restart_with_their_message(tmp_path, where):
    hub = await Hub.start(tmp_path)
    on = On(hub, where)
    on.make(cache_size=3)
    for name in "abcd":
        on.publish(name.encode(), name)
    on.publish(b"transient", "t", persistent=False)
    async with running(await hub.restart()) as hub:
        on = On(hub, where)
        for name in "bcdt":
            on.publish(b"again " + name.encode(), name)
        await hub.settle()
        assert await hub.bodies("q") == [b"a", b"b", b"c", b"d", b"again b", b"again t"]
        assert not list(hub.broker.parameters)


@pytest.mark.parametrize("value", ["5", '"zz"', "[0]", '["a", 1]', "{", "null"])
async def test_a_damaged_key_costs_only_itself(tmp_path, where, caplog, value):
    hub = await Hub.start(tmp_path)
    on = On(hub, where)
    on.make()
    on.publish(b"1", "a")
    component = "x-deduplication " + ("exchange once" if on.exchange else "queue q")
    hub.broker.store.save(ParameterDefinition("/", component, "b", value))
    async with running(await hub.restart()) as hub:
        on = On(hub, where)
        on.publish(b"2", "a")
        on.publish(b"3", "b")
        assert await hub.bodies("q") == [b"1", b"3"]
        assert "a damaged key 'b' is left out" in caplog.text


async def test_deleted_and_made_again_nothing_is_remembered(tmp_path, where):
    hub = await Hub.start(tmp_path)
    On(hub, where).make()
    On(hub, where).publish(b"1", "a")
    async with running(await hub.restart()) as hub:
        hub.vhost.delete_queue("q")
        if where == "exchange":
            hub.vhost.delete_exchange("once")
        On(hub, where).make()
        On(hub, where).publish(b"2", "a")
        assert await hub.bodies("q") == [b"2"]


async def test_a_refused_message_is_not_remembered(hub):
    hub.queue("q", message_deduplication=True, max_length=1, overflow="reject-publish")
    assert hub.publish("", "q", b"1", **key("a")).taken
    assert not hub.publish("", "q", b"2", **key("b")).taken
    assert await hub.bodies("q") == [b"1"]
    assert hub.publish("", "q", b"2", **key("b")).taken
    assert await hub.bodies("q") == [b"2"]


async def test_wrong_arguments_are_refused(hub, where):
    on = On(hub, where)
    for arguments in ({"cache_size": 0}, {"cache_ttl": "1"}):
        with pytest.raises(PreconditionFailed, match="x-cache-"):
            on.make(**arguments)
