"""Messages with a known deduplication key are confirmed and not enqueued."""

import pytest

from leveret.model.definitions import ParameterDefinition
from leveret.model.errors import PreconditionFailed
from tests.features.harness import BrokerHarness
from tests.features.test_time_and_restarts import running


def key(name):
    return {"headers": {"x-deduplication-header": name}}


class Deduplication:
    """Deduplication by a queue or by an exchange."""

    def __init__(self, harness, kind):
        self.harness, self.exchange = harness, "" if kind == "queue" else "once"

    def declare(self, **arguments):
        if self.exchange:
            self.harness.exchange("once", "x-message-deduplication", **arguments)
            self.harness.queue("q")
            self.harness.bind("once", "q")
        else:
            self.harness.queue("q", message_deduplication=True, **arguments)

    def publish(self, body, name=None, **other):
        properties = key(name) if name is not None else {}
        properties.update(other)
        return self.harness.publish(self.exchange, "q", body, **properties)


@pytest.fixture(params=["queue", "exchange"])
def kind(request):
    return request.param


async def test_first_message_of_a_key_is_kept(harness, kind):
    deduplication = Deduplication(harness, kind)
    deduplication.declare()
    for body, name in ((b"1", "a"), (b"2", "a"), (b"3", "b"), (b"4", None), (b"5", None)):
        assert deduplication.publish(body, name).accepted
    await harness.settle()
    assert await harness.bodies("q") == [b"1", b"3", b"4", b"5"]
    deduplication.publish(b"after the ack", "a")
    assert await harness.bodies("q") == []


async def test_keys_of_different_types_differ(harness, kind):
    deduplication = Deduplication(harness, kind)
    deduplication.declare()
    values = (1, "1", 2, "int 1", "str int 1", "bool True", True, 1.5, "float 1.5")
    for value in (*values, *values):
        deduplication.publish(repr(value).encode(), value)
    assert await harness.bodies("q") == [repr(value).encode() for value in values]


async def test_oldest_key_is_dropped_when_the_cache_is_full(harness, kind):
    deduplication = Deduplication(harness, kind)
    deduplication.declare(cache_size=2)
    for name in "abca":
        deduplication.publish(name.encode(), name)
    assert await harness.bodies("q") == [b"a", b"b", b"c", b"a"]


async def test_keys_expire(harness, kind):
    deduplication = Deduplication(harness, kind)
    deduplication.declare(cache_ttl=1_000)
    deduplication.publish(b"1", "a")
    await harness.advance(0.5)
    deduplication.publish(b"2", "a")
    await harness.advance(0.6)
    deduplication.publish(b"3", "a")
    assert await harness.bodies("q") == [b"1", b"3"]


async def test_keys_survive_a_restart_with_their_message(tmp_path, kind):
    harness = await BrokerHarness.start(tmp_path)
    deduplication = Deduplication(harness, kind)
    deduplication.declare(cache_size=3)
    for name in "abcd":
        deduplication.publish(name.encode(), name)
    deduplication.publish(b"transient", "t", persistent=False)
    async with running(await harness.restart()) as harness:
        deduplication = Deduplication(harness, kind)
        for name in "bcdt":
            deduplication.publish(b"again " + name.encode(), name)
        await harness.settle()
        assert await harness.bodies("q") == [b"a", b"b", b"c", b"d", b"again b", b"again t"]
        assert not list(harness.broker.parameters)


@pytest.mark.parametrize("value", ["5", '"zz"', "[0]", '["a", 1]', "{", "null"])
async def test_damaged_key_is_skipped(tmp_path, kind, caplog, value):
    harness = await BrokerHarness.start(tmp_path)
    deduplication = Deduplication(harness, kind)
    deduplication.declare()
    deduplication.publish(b"1", "a")
    component = "x-deduplication " + ("exchange once" if deduplication.exchange else "queue q")
    harness.broker.store.save(ParameterDefinition("/", component, "b", value))
    async with running(await harness.restart()) as harness:
        deduplication = Deduplication(harness, kind)
        deduplication.publish(b"2", "a")
        deduplication.publish(b"3", "b")
        assert await harness.bodies("q") == [b"1", b"3"]
        assert "ignored deduplication key 'b' with damaged value" in caplog.text


async def test_keys_are_deleted_with_their_queue_or_exchange(tmp_path, kind):
    harness = await BrokerHarness.start(tmp_path)
    Deduplication(harness, kind).declare()
    Deduplication(harness, kind).publish(b"1", "a")
    async with running(await harness.restart()) as harness:
        harness.vhost.delete_queue("q")
        if kind == "exchange":
            harness.vhost.delete_exchange("once")
        Deduplication(harness, kind).declare()
        Deduplication(harness, kind).publish(b"2", "a")
        assert await harness.bodies("q") == [b"2"]


async def test_key_of_a_rejected_message_is_not_remembered(harness):
    harness.queue("q", message_deduplication=True, max_length=1, overflow="reject-publish")
    assert harness.publish("", "q", b"1", **key("a")).accepted
    assert not harness.publish("", "q", b"2", **key("b")).accepted
    assert await harness.bodies("q") == [b"1"]
    assert harness.publish("", "q", b"2", **key("b")).accepted
    assert await harness.bodies("q") == [b"2"]


async def test_invalid_arguments_are_refused(harness, kind):
    deduplication = Deduplication(harness, kind)
    for arguments in ({"cache_size": 0}, {"cache_ttl": "1"}):
        with pytest.raises(PreconditionFailed, match="x-cache-"):
            deduplication.declare(**arguments)
