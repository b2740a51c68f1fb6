"""The firehose copies what passes through a traced vhost; the event exchange tells what happens."""

import asyncio
from dataclasses import replace

import pika
import pytest

import leveret
from leveret.broker.acting import INTERNAL_USER
from leveret.broker.policies import Policy
from leveret.model.errors import AccessRefused
from leveret.model.store import PermissionDefinition, TopicPermissionDefinition
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


def take(channel, queue, count, seconds=60):
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

    asyncio.run_coroutine_threadsafe(switch(True), loop).result(60)
    try:
        channel.basic_consume(queue, lambda *_: None, auto_ack=True)
        channel.basic_publish("", queue, b"x")
        found = take(channel, copies, 2)
    finally:
        asyncio.run_coroutine_threadsafe(switch(False), loop).result(60)
    assert {key for key, _, _ in found} == {"publish.", f"deliver.{queue}"}
    for _, properties, body in found:
        assert body == b"x"
        assert properties.headers["user"] == "guest"
        assert properties.headers["channel"] == channel.channel_number
        assert "->" in properties.headers["connection"]


_NAMED = {"channel": "name", "vhost": "vhost", "user_who_performed_action": "user"}


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
        assert {event.headers["user_who_performed_action"] for _, event, _ in found} == {"guest"}
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
        made = take(channel, events, 4)
        assert [key for key, _, _ in made] == [
            "connection.created", "channel.created", "queue.created", "consumer.created"
        ]  # fmt: skip
        assert [key for key, _, _ in take(channel, closed, 2)] == [
            "channel.closed", "connection.closed"
        ]  # fmt: skip
        ((_, properties, _),) = take(channel, gone, 1)
        assert (properties.headers["consumer_tag"], properties.headers["queue"]) == (tag, queue)
        facts = made[3][1].headers
        for name in ("channel", "vhost", "user_who_performed_action"):
            assert facts[name] == properties.headers[name] == made[1][1].headers[_NAMED[name]]
        assert (facts["ack_required"], facts["exclusive"], facts["prefetch_count"]) == (
            True, False, 0
        )  # fmt: skip


def test_events_of_logins(broker, channel):
    events = bound(channel, "amq.rabbitmq.event", "user.authentication.*")
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()
    stranger = pika.URLParameters(broker.url)
    stranger.credentials = pika.PlainCredentials("eve", "wrong")
    with pytest.raises(pika.exceptions.AMQPError):
        pika.BlockingConnection(stranger)
    (good, bad) = take(channel, events, 2, seconds=30)
    assert (good[0], good[1].headers["name"]) == ("user.authentication.success", "guest")
    assert (bad[0], bad[1].headers["name"]) == ("user.authentication.failure", "eve")
    assert "error" not in good[1].headers and bad[1].headers["error"]
    assert bad[1].headers["peer_host"] == "127.0.0.1"
    assert bad[1].headers["auth_mechanism"] == "PLAIN"


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


async def told(hub):
    """Key and facts of every event so far, without their time."""
    found = []
    for message in await hub.take("events"):
        facts = message.headers()
        assert facts.pop("timestamp_in_ms") == hub.clock.wall_ms()
        is_alarm = message.routing_key.startswith("alarm.")
        assert facts.pop("user_who_performed_action", None) == (None if is_alarm else INTERNAL_USER)
        found.append((message.routing_key, dict(facts)))
    return found


@pytest.fixture
async def listening(hub):
    hub.queue("events")
    hub.bind("amq.rabbitmq.event", "events", "#")
    await told(hub)
    return hub


async def test_events_of_policies(listening):
    policies = listening.broker.policies
    value = {
        "pattern": "^q",
        "definition": {"max-length": 3},
        "priority": 1,
        "apply-to": "queues",
    }
    where = {"vhost": "/", "name": "p"}
    ours = Policy("/", "p", "^q", {"max-length": 3}, "queues", 1)
    policies.put(ours)
    policies.delete(ours)
    policies.delete(ours)
    assert await told(listening) == [
        ("policy.set", {**where, **value}),
        ("policy.cleared", where),
    ]
    theirs = replace(ours, operator=True)
    policies.put(theirs)
    policies.delete(theirs)
    parameter = {**where, "component": "operator_policy"}
    assert await told(listening) == [
        ("parameter.set", {**parameter, "value": value}),
        ("policy.set", {**where, **value}),
        ("parameter.cleared", parameter),
        ("operator.policy.cleared", where),
    ]


async def test_events_of_parameters_and_limits(listening):
    parameters = listening.broker.parameters
    parameters.put("/", "shovel", "s", {"a": 1})
    parameters.delete("/", "shovel", "s")
    parameters.put("", "", "answer", 42)
    parameters.put("/", "vhost-limits", "limits", {"max-queues": 5})
    parameters.delete("/", "vhost-limits", "limits")
    listening.broker.users.set_limits("guest", {"max-channels": 9})
    listening.broker.users.set_limits("guest", {})
    shovel = {"vhost": "/", "component": "shovel", "name": "s"}
    limits = {"vhost": "/", "component": "vhost-limits", "name": "limits"}
    assert await told(listening) == [
        ("parameter.set", {**shovel, "value": {"a": 1}}),
        ("parameter.cleared", shovel),
        ("parameter.set", {"component": "global", "name": "answer", "value": 42}),
        ("parameter.set", {**limits, "value": {"max-queues": 5}}),
        ("vhost.limits.set", {"vhost": "/", "name": "limits", "max-queues": 5}),
        ("parameter.cleared", limits),
        ("vhost.limits.cleared", {"vhost": "/", "name": "limits"}),
        ("user.limits.set", {"username": "guest", "name": "limits", "max-channels": 9}),
        ("user.limits.cleared", {"username": "guest", "name": "limits"}),
    ]


async def test_events_of_permissions_and_tags(listening):
    users, right = listening.broker.users, {"user": "eve", "vhost": "/"}
    users.put_user("eve", "hash", ("monitoring",))
    users.set_permission(PermissionDefinition("eve", "/", "a", "b", "c"))
    users.set_topic_permission(TopicPermissionDefinition("eve", "/", "amq.topic", "b", "c"))
    users.clear_topic_permission("eve", "/", "amq.topic")
    users.clear_permission("eve", "/")
    users.put_user("eve", "hash", ())
    assert await told(listening) == [
        ("user.created", {"name": "eve"}),
        ("user.tags.set", {"name": "eve", "tags": ["monitoring"]}),
        ("permission.created", {**right, "configure": "a", "write": "b", "read": "c"}),
        (
            "topic.permission.created",
            {**right, "exchange": "amq.topic", "write": "b", "read": "c"},
        ),
        ("topic.permission.deleted", {**right, "exchange": "amq.topic"}),
        ("permission.deleted", right),
        ("user.tags.set", {"name": "eve", "tags": []}),
    ]


async def test_events_of_alarms(listening):
    alarms = listening.broker.alarms
    alarms.set("memory", "low")
    alarms.set("memory", "lower")
    alarms.set("memory", "")
    alarms.set("memory", "")
    node = listening.broker.settings.node_name
    assert await told(listening) == [
        ("alarm.set", {"alarm": "memory", "reason": "low", "node": node}),
        ("alarm.cleared", {"alarm": "memory", "node": node}),
    ]


def test_deliveries_of_logs_are_copied_for_each_reader(broker, channel):
    copies = bound(channel, "amq.rabbitmq.trace", "deliver.#")
    channel.queue_declare("told-log", durable=True, arguments={"x-queue-type": "stream"})
    hub, loop = broker.running.broker, broker._loop

    async def switch(is_on):
        hub.set_vhost_options(hub.vhosts["/"], {"tracing": is_on})

    channel.confirm_delivery()
    channel.basic_publish("", "told-log", b"record", mandatory=True)
    asyncio.run_coroutine_threadsafe(switch(True), loop).result(60)
    try:
        channel.basic_qos(prefetch_count=10)
        for tag in ("one", "two"):
            first = {"x-stream-offset": "first"}
            channel.basic_consume("told-log", lambda *_: None, consumer_tag=tag, arguments=first)
        found = take(channel, copies, 2)
    finally:
        asyncio.run_coroutine_threadsafe(switch(False), loop).result(60)
    assert [(key, body) for key, _, body in found] == [("deliver.told-log", b"record")] * 2
    for _, properties, _ in found:
        assert properties.headers["properties"]["headers"]["x-stream-offset"] == 0
        assert properties.headers["redelivered"] == 0
    channel.queue_delete("told-log")
