"""The firehose copies what passes through a traced vhost; the event exchange tells what happens."""

import asyncio

import pika
import pytest

import leveret
from leveret.model.errors import AccessRefused
from tests.features.hub import Hub


@pytest.fixture(scope="module")
def broker():
    with leveret.ThreadedBroker() as running:
        yield running


@pytest.fixture
def connect(broker):
    opened = []

    def make():
        opened.append(pika.BlockingConnection(pika.URLParameters(broker.url)))
        return opened[-1]

    yield make
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect):
    return connect().channel()


def bound(channel, exchange, key):
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, exchange, key)
    return queue


def take(channel, queue, count, seconds=5):
    found = []
    for _ in range(int(seconds / 0.02)):
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            channel.connection.process_data_events(0.02)
        else:
            found.append((method.routing_key, properties, body))
        if len(found) == count:
            break
    return found


async def test_nothing_is_copied_while_it_is_off(hub):
    hub.queue("q")
    hub.queue("copies")
    hub.bind("amq.rabbitmq.trace", "copies", "#")
    hub.publish("", "q", b"x")
    await hub.take("q")
    assert await hub.bodies("copies") == []


async def test_publishes_and_deliveries_are_copied(hub):
    hub.queue("q")
    hub.queue("copies")
    hub.bind("amq.rabbitmq.trace", "copies", "#")
    hub.publish("", "q", b"before")
    hub.broker.set_vhost_options(hub.vhost, {"tracing": True})
    hub.publish("amq.direct", "nowhere", b"lost", message_id="m")
    hub.publish("", "q", b"after")
    hub.queue("made later")
    hub.publish("", "made later", b"new")
    await hub.take("q")
    await hub.take("made later")
    copies = [(m.routing_key, m.body, m.headers()) for m in await hub.take("copies")]
    assert [copy[:2] for copy in copies] == [
        ("publish.amq.direct", b"lost"),
        ("publish.", b"after"),
        ("publish.", b"new"),
        ("deliver.q", b"before"),
        ("deliver.q", b"after"),
        ("deliver.made later", b"new"),
    ]
    first, second = copies[0][2], copies[1][2]
    assert first["routed_queues"] == []
    assert first["properties"]["message_id"] == "m"
    assert (second["routed_queues"], second["routing_keys"]) == (["q"], ["q"])
    assert (second["vhost"], second["exchange_name"], second["user"]) == ("/", "", "guest")
    assert copies[3][2]["redelivered"] == 0
    hub.broker.set_vhost_options(hub.vhost, {"tracing": False})
    hub.publish("", "q", b"x")
    assert await hub.bodies("copies") == []


async def test_tracing_survives_a_restart(tmp_path):
    hub = await Hub.start(tmp_path)
    hub.queue("q")
    hub.broker.set_vhost_options(hub.vhost, {"tracing": True})
    hub = await hub.restart()
    hub.queue("copies")
    hub.bind("amq.rabbitmq.trace", "copies", "deliver.#")
    hub.publish("", "q", b"x")
    await hub.take("q")
    assert await hub.bodies("copies") == [b"x"]
    await hub.stop()


def test_the_copy_names_connection_and_channel(broker, channel):
    copies = bound(channel, "amq.rabbitmq.trace", "#")
    queue = channel.queue_declare("", exclusive=True).method.queue
    hub, loop = broker.running.broker, broker._loop

    async def switch(is_on):
        hub.set_vhost_options(hub.vhosts["/"], {"tracing": is_on})

    asyncio.run_coroutine_threadsafe(switch(True), loop).result(5)
    try:
        channel.basic_consume(queue, lambda *_: None, auto_ack=True)
        channel.basic_publish("", queue, b"x")
        found = take(channel, copies, 2)
    finally:
        asyncio.run_coroutine_threadsafe(switch(False), loop).result(5)
    assert {key for key, _, _ in found} == {"publish.", f"deliver.{queue}"}
    for _, properties, body in found:
        assert body == b"x"
        assert properties.headers["user"] == "guest"
        assert properties.headers["channel"] == channel.channel_number
        assert "->" in properties.headers["connection"]


class TestEvents:
    def test_topology(self, channel):
        events = bound(channel, "amq.rabbitmq.event", "#")
        channel.exchange_declare("told", "fanout")
        queue = channel.queue_declare("told-q", arguments={"x-max-length": 3}).method.queue
        channel.queue_bind(queue, "told", "k")
        channel.queue_unbind(queue, "told", "k")
        channel.queue_delete(queue)
        channel.exchange_delete("told")
        found = take(channel, events, 7)
        assert [key for key, _, _ in found] == [
            "binding.created",
            "exchange.created",
            "queue.created",
            "binding.created",
            "binding.deleted",
            "queue.deleted",
            "exchange.deleted",
        ]
        made = found[2][1].headers
        assert (made["name"], made["vhost"], made["arguments"]) == (
            "told-q",
            "/",
            {"x-max-length": 3},
        )
        assert found[3][1].headers["routing_key"] == "k"
        assert made["timestamp_in_ms"] // 1000 == found[2][1].timestamp

    def test_clients(self, connect, channel):
        events = bound(channel, "amq.rabbitmq.event", "*.created")
        closed = bound(channel, "amq.rabbitmq.event", "*.closed")
        gone = bound(channel, "amq.rabbitmq.event", "consumer.deleted")
        for queue in (events, closed, gone):
            channel.queue_purge(queue)
        other = connect()
        second = other.channel()
        queue = second.queue_declare("", exclusive=True).method.queue
        tag = second.basic_consume(queue, print)
        second.basic_cancel(tag)
        other.close()
        keys = [key for key, _, _ in take(channel, events, 4)]
        assert keys == [
            "connection.created", "channel.created", "queue.created", "consumer.created"
        ]  # fmt: skip
        assert [key for key, _, _ in take(channel, closed, 2)] == [
            "channel.closed", "connection.closed"
        ]  # fmt: skip
        ((_, properties, _),) = take(channel, gone, 1)
        assert (properties.headers["consumer_tag"], properties.headers["queue"]) == (tag, queue)


async def test_events_of_users_and_vhosts(hub):
    hub.queue("events")
    hub.bind("amq.rabbitmq.event", "events", "user.#")
    hub.bind("amq.rabbitmq.event", "events", "vhost.#")
    hub.broker.users.put_user("eve", "hash", ())
    hub.broker.users.put_user("eve", "other hash", ())
    hub.broker.delete_user("eve")
    hub.broker.add_vhost("v")
    hub.broker.delete_vhost("v")
    assert [message.routing_key for message in await hub.take("events")] == [
        "user.created", "user.password.changed", "user.deleted", "vhost.created", "vhost.deleted",
    ]  # fmt: skip


async def test_clients_cannot_publish_events(hub):
    with pytest.raises(AccessRefused, match="internal exchange"):
        hub.publish("amq.rabbitmq.event", "queue.created")
