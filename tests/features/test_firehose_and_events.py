"""The firehose copies messages of a traced vhost; the event exchange publishes events."""

from dataclasses import replace

import pika
import pytest

import leveret
from leveret.broker.events.actor import INTERNAL_USER
from leveret.broker.policies.policies import Policy
from leveret.model.definitions import PermissionDefinition, TopicPermissionDefinition
from leveret.model.errors import AccessRefused
from tests.features.harness import BrokerHarness


@pytest.fixture(scope="module")
def broker():
    with leveret.ThreadedBroker() as broker:
        yield broker


@pytest.fixture
def connect(broker):
    connections = []

    def connect():
        connections.append(pika.BlockingConnection(pika.URLParameters(broker.url)))
        return connections[-1]

    yield connect
    for connection in connections:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect):
    return connect().channel()


def bound_queue(channel, exchange, key):
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, exchange, key)
    return queue


def get(channel, queue, count, seconds=60):
    """Routing keys, properties and bodies of the next messages."""
    received = []
    for _ in range(int(seconds / 0.02)):
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            channel.connection.process_data_events(0.02)
        else:
            received.append((method.routing_key, properties, body))
        if len(received) == count:
            break
    return received


def set_tracing(broker, is_on):
    inner = broker.running.broker
    broker.call(lambda: inner.set_vhost_options(inner.vhosts["/"], {"tracing": is_on}))


async def test_nothing_is_copied_without_tracing(harness):
    harness.queue("q")
    harness.queue("copies")
    harness.bind("amq.rabbitmq.trace", "copies", "#")
    harness.publish("", "q", b"x")
    await harness.take("q")
    assert await harness.bodies("copies") == []


async def test_publishes_and_deliveries_are_copied(harness):
    harness.queue("q")
    harness.queue("copies")
    harness.bind("amq.rabbitmq.trace", "copies", "#")
    harness.publish("", "q", b"before")
    harness.broker.set_vhost_options(harness.vhost, {"tracing": True})
    harness.publish("amq.direct", "nowhere", b"lost", message_id="m")
    harness.publish("", "q", b"after")
    harness.queue("declared later")
    harness.publish("", "declared later", b"new")
    await harness.take("q")
    await harness.take("declared later")
    copies = [(m.routing_key, m.body, m.headers()) for m in await harness.take("copies")]
    assert [copy[:2] for copy in copies] == [
        ("publish.amq.direct", b"lost"),
        ("publish.", b"after"),
        ("publish.", b"new"),
        ("deliver.q", b"before"),
        ("deliver.q", b"after"),
        ("deliver.declared later", b"new"),
    ]
    first, second = copies[0][2], copies[1][2]
    assert first["routed_queues"] == []
    assert first["properties"]["message_id"] == "m"
    assert (second["routed_queues"], second["routing_keys"]) == (["q"], ["q"])
    assert (second["vhost"], second["exchange_name"], second["user"]) == ("/", "", "guest")
    assert copies[3][2]["redelivered"] == 0
    harness.broker.set_vhost_options(harness.vhost, {"tracing": False})
    harness.publish("", "q", b"x")
    assert await harness.bodies("copies") == []


async def test_tracing_survives_a_restart(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("q")
    harness.broker.set_vhost_options(harness.vhost, {"tracing": True})
    harness = await harness.restart()
    harness.queue("copies")
    harness.bind("amq.rabbitmq.trace", "copies", "deliver.#")
    harness.publish("", "q", b"x")
    await harness.take("q")
    assert await harness.bodies("copies") == [b"x"]
    await harness.stop()


def test_copy_has_connection_and_channel_headers(broker, channel):
    copies = bound_queue(channel, "amq.rabbitmq.trace", "#")
    queue = channel.queue_declare("", exclusive=True).method.queue
    set_tracing(broker, True)
    try:
        channel.basic_consume(queue, lambda *_: None, auto_ack=True)
        channel.basic_publish("", queue, b"x")
        received = get(channel, copies, 2)
    finally:
        set_tracing(broker, False)
    assert {key for key, _, _ in received} == {"publish.", f"deliver.{queue}"}
    for _, properties, body in received:
        assert body == b"x"
        assert properties.headers["user"] == "guest"
        assert properties.headers["channel"] == channel.channel_number
        assert "->" in properties.headers["connection"]


_CHANNEL_FIELDS = {"channel": "name", "vhost": "vhost", "user_who_performed_action": "user"}


class TestEvents:
    def test_events_of_exchanges_queues_and_bindings(self, channel):
        events = bound_queue(channel, "amq.rabbitmq.event", "#")
        channel.exchange_declare("created-x", "fanout")
        queue = channel.queue_declare("created-q", arguments={"x-max-length": 3}).method.queue
        channel.queue_bind(queue, "created-x", "k")
        channel.queue_unbind(queue, "created-x", "k")
        channel.queue_delete(queue)
        channel.exchange_delete("created-x")
        received = get(channel, events, 7)
        assert [key for key, _, _ in received] == [
            "binding.created",
            "exchange.created",
            "queue.created",
            "binding.created",
            "binding.deleted",
            "queue.deleted",
            "exchange.deleted",
        ]
        assert {event.headers["user_who_performed_action"] for _, event, _ in received} == {"guest"}
        created = received[2][1].headers
        assert (created["name"], created["vhost"], created["arguments"]) == (
            "created-q",
            "/",
            {"x-max-length": 3},
        )
        assert received[3][1].headers["routing_key"] == "k"
        assert created["timestamp_in_ms"] // 1000 == received[2][1].timestamp

    def test_events_of_connections_channels_and_consumers(self, connect, channel):
        events = bound_queue(channel, "amq.rabbitmq.event", "*.created")
        closed = bound_queue(channel, "amq.rabbitmq.event", "*.closed")
        deleted = bound_queue(channel, "amq.rabbitmq.event", "consumer.deleted")
        for queue in (events, closed, deleted):
            channel.queue_purge(queue)
        other = connect()
        second = other.channel()
        queue = second.queue_declare("", exclusive=True).method.queue
        tag = second.basic_consume(queue, print)
        second.basic_cancel(tag)
        other.close()
        created = get(channel, events, 4)
        assert [key for key, _, _ in created] == [
            "connection.created", "channel.created", "queue.created", "consumer.created"
        ]  # fmt: skip
        assert [key for key, _, _ in get(channel, closed, 2)] == [
            "channel.closed", "connection.closed"
        ]  # fmt: skip
        ((_, properties, _),) = get(channel, deleted, 1)
        assert (properties.headers["consumer_tag"], properties.headers["queue"]) == (tag, queue)
        consumer = created[3][1].headers
        for name in ("channel", "vhost", "user_who_performed_action"):
            assert (
                consumer[name]
                == properties.headers[name]
                == created[1][1].headers[_CHANNEL_FIELDS[name]]
            )
        assert (consumer["ack_required"], consumer["exclusive"], consumer["prefetch_count"]) == (
            True, False, 0
        )  # fmt: skip


def test_events_of_logins(broker, channel):
    events = bound_queue(channel, "amq.rabbitmq.event", "user.authentication.*")
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()
    parameters = pika.URLParameters(broker.url)
    parameters.credentials = pika.PlainCredentials("eve", "wrong")
    with pytest.raises(pika.exceptions.AMQPError):
        pika.BlockingConnection(parameters)
    (success, failure) = get(channel, events, 2, seconds=30)
    assert (success[0], success[1].headers["name"]) == ("user.authentication.success", "guest")
    assert (failure[0], failure[1].headers["name"]) == ("user.authentication.failure", "eve")
    assert "error" not in success[1].headers and failure[1].headers["error"]
    assert failure[1].headers["peer_host"] == "127.0.0.1"
    assert failure[1].headers["auth_mechanism"] == "PLAIN"


async def test_events_of_users_and_vhosts(harness):
    harness.queue("events")
    harness.bind("amq.rabbitmq.event", "events", "user.#")
    harness.bind("amq.rabbitmq.event", "events", "vhost.#")
    harness.broker.users.put_user("eve", "hash", ())
    harness.broker.users.put_user("eve", "other hash", ())
    harness.broker.delete_user("eve")
    harness.broker.add_vhost("v")
    harness.broker.delete_vhost("v")
    assert [message.routing_key for message in await harness.take("events")] == [
        "user.created", "user.password.changed", "user.deleted", "vhost.created", "vhost.deleted",
    ]  # fmt: skip


async def test_clients_cannot_publish_events(harness):
    with pytest.raises(AccessRefused, match="internal exchange"):
        harness.publish("amq.rabbitmq.event", "queue.created")


async def published_events(harness):
    """Routing key and headers of every event so far, without timestamp and user."""
    received = []
    for message in await harness.take("events"):
        headers = message.headers()
        assert headers.pop("timestamp_in_ms") == harness.clock.wall_ms()
        is_alarm = message.routing_key.startswith("alarm.")
        user = headers.pop("user_who_performed_action", None)
        assert user == (None if is_alarm else INTERNAL_USER)
        received.append((message.routing_key, dict(headers)))
    return received


@pytest.fixture
async def event_harness(harness):
    harness.queue("events")
    harness.bind("amq.rabbitmq.event", "events", "#")
    await published_events(harness)
    return harness


async def test_events_of_policies(event_harness):
    policies = event_harness.broker.policies
    value = {
        "pattern": "^q",
        "definition": {"max-length": 3},
        "priority": 1,
        "apply-to": "queues",
    }
    name = {"vhost": "/", "name": "p"}
    policy = Policy("/", "p", "^q", {"max-length": 3}, "queues", 1)
    policies.put(policy)
    policies.delete(policy)
    policies.delete(policy)
    assert await published_events(event_harness) == [
        ("policy.set", {**name, **value}),
        ("policy.cleared", name),
    ]
    operator_policy = replace(policy, operator=True)
    policies.put(operator_policy)
    policies.delete(operator_policy)
    parameter = {**name, "component": "operator_policy"}
    assert await published_events(event_harness) == [
        ("parameter.set", {**parameter, "value": value}),
        ("policy.set", {**name, **value}),
        ("parameter.cleared", parameter),
        ("operator.policy.cleared", name),
    ]


async def test_events_of_parameters_and_limits(event_harness):
    parameters = event_harness.broker.parameters
    parameters.put("/", "shovel", "s", {"a": 1})
    parameters.delete("/", "shovel", "s")
    parameters.put("", "", "answer", 42)
    parameters.put("/", "vhost-limits", "limits", {"max-queues": 5})
    parameters.delete("/", "vhost-limits", "limits")
    event_harness.broker.users.set_limits("guest", {"max-channels": 9})
    event_harness.broker.users.set_limits("guest", {})
    shovel = {"vhost": "/", "component": "shovel", "name": "s"}
    limits = {"vhost": "/", "component": "vhost-limits", "name": "limits"}
    assert await published_events(event_harness) == [
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


async def test_events_of_permissions_and_tags(event_harness):
    users, permission = event_harness.broker.users, {"user": "eve", "vhost": "/"}
    users.put_user("eve", "hash", ("monitoring",))
    users.set_permission(PermissionDefinition("eve", "/", "a", "b", "c"))
    users.set_topic_permission(TopicPermissionDefinition("eve", "/", "amq.topic", "b", "c"))
    users.clear_topic_permission("eve", "/", "amq.topic")
    users.clear_permission("eve", "/")
    users.put_user("eve", "hash", ())
    assert await published_events(event_harness) == [
        ("user.created", {"name": "eve"}),
        ("user.tags.set", {"name": "eve", "tags": ["monitoring"]}),
        ("permission.created", {**permission, "configure": "a", "write": "b", "read": "c"}),
        (
            "topic.permission.created",
            {**permission, "exchange": "amq.topic", "write": "b", "read": "c"},
        ),
        ("topic.permission.deleted", {**permission, "exchange": "amq.topic"}),
        ("permission.deleted", permission),
        ("user.tags.set", {"name": "eve", "tags": []}),
    ]


async def test_events_of_alarms(event_harness):
    alarms = event_harness.broker.alarms
    alarms.set("memory", "low")
    alarms.set("memory", "lower")
    alarms.set("memory", "")
    alarms.set("memory", "")
    node = event_harness.broker.settings.node_name
    assert await published_events(event_harness) == [
        ("alarm.set", {"alarm": "memory", "reason": "low", "node": node}),
        ("alarm.cleared", {"alarm": "memory", "node": node}),
    ]


def test_deliveries_of_logs_are_copied_for_each_reader(broker, channel):
    copies = bound_queue(channel, "amq.rabbitmq.trace", "deliver.#")
    channel.queue_declare("traced-log", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    channel.basic_publish("", "traced-log", b"record", mandatory=True)
    set_tracing(broker, True)
    try:
        channel.basic_qos(prefetch_count=10)
        for tag in ("first", "second"):
            arguments = {"x-stream-offset": "first"}
            channel.basic_consume(
                "traced-log", lambda *_: None, consumer_tag=tag, arguments=arguments
            )
        received = get(channel, copies, 2)
    finally:
        set_tracing(broker, False)
    assert [(key, body) for key, _, body in received] == [("deliver.traced-log", b"record")] * 2
    for _, properties, _ in received:
        assert properties.headers["properties"]["headers"]["x-stream-offset"] == 0
        assert properties.headers["redelivered"] == 0
    channel.queue_delete("traced-log")
