"""Topic permissions: which routing keys of a topic exchange a user may publish and bind with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pamqp import body, header
from pamqp.commands import Basic, Channel, Exchange, Queue

from leveret.bindings import Destination, DestinationKind
from leveret.broker import Action, Broker
from leveret.broker.access.passwords import hash_password
from leveret.broker.access.patterns import expand, pattern
from leveret.broker.access.permissions import TOPIC_PERMISSIONS
from leveret.exchange import ExchangeSpec
from leveret.model.definitions import PermissionDefinition, TopicPermissionDefinition
from leveret.model.errors import PreconditionFailed
from leveret.queues.spec import QueueSpec
from tests.http.conftest import Served, serve
from tests.support.rawclient import RawClient

USER = "ann"
REFUSED = "access to topic '{}' in exchange '{}' in vhost '/' refused for user 'ann'"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve() as threaded:
        served = Served(threaded)
        served.on_loop(_prepare)
        yield served


def _prepare(hub: Broker) -> None:
    vhost = hub.vhosts["/"]
    vhost.declare_queue(QueueSpec("q"))
    vhost.declare_exchange(ExchangeSpec("to", "fanout"))
    later = ExchangeSpec("later", "x-delayed-message", arguments={"x-delayed-type": "topic"})
    vhost.declare_exchange(later)
    hub.users.put_user(USER, hash_password(USER), ("management",))
    hub.users.set_permission(PermissionDefinition(USER, "/", ".*", ".*", ".*"))
    _permit(hub)


def _permit(hub: Broker) -> None:
    for name in ("amq.topic", "amq.direct", "later"):
        hub.users.set_topic_permission(
            TopicPermissionDefinition(USER, "/", name, r"^{username}\.{vhost}\.", "^(news|#$)")
        )


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[RawClient]:
    with RawClient(*served.threaded.amqp_address) as client:
        yield client.handshake("/", USER, USER)


def _publish(exchange: str, key: str, headers: Any = None) -> tuple[Any, ...]:
    properties = Basic.Properties(headers=headers)
    return (
        Basic.Publish(exchange=exchange, routing_key=key),
        header.ContentHeader(0, 1, properties),
        body.ContentBody(b"x"),
    )


_CC: Any = {"CC": ["ann./.b", "other"]}


@pytest.mark.parametrize(
    ("frames", "refused"),
    [
        (_publish("amq.topic", "ann./.a"), None),
        (_publish("amq.topic", "annx/.a"), "annx/.a"),
        (_publish("amq.topic", "ann.x.a"), "ann.x.a"),
        (_publish("amq.topic", ""), ""),
        (_publish("amq.topic", "ann./.a", _CC), "other"),
        (_publish("amq.topic", "ann./.a", {"BCC": ["other"]}), "other"),
        (_publish("amq.direct", "anything"), None),  # not a topic exchange
        (_publish("amq.rabbitmq.none", "x"), ...),
        ((Queue.Bind(queue="q", exchange="amq.topic", routing_key="news.#"),), None),
        ((Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"),), None),
        ((Queue.Bind(queue="q", exchange="amq.topic", routing_key="*.#"),), "*.#"),
        ((Queue.Unbind(queue="q", exchange="amq.topic", routing_key="x"),), "x"),
        ((Queue.Unbind(queue="q", exchange="amq.topic", routing_key="news"),), None),
        ((Queue.Bind(queue="q", exchange="amq.direct", routing_key="x"),), None),
        ((Exchange.Bind(destination="to", source="amq.topic", routing_key="x"),), "x"),
        ((Exchange.Unbind(destination="to", source="amq.topic", routing_key="x"),), "x"),
        ((Exchange.Bind(destination="amq.topic", source="to", routing_key="x"),), None),
    ],
)
def test_over_amqp(client: RawClient, frames: tuple[Any, ...], refused: Any) -> None:
    channel = client.channel(1)
    if refused is ...:
        channel.send(*frames)
        channel.expect_close(404)
    elif refused is None:
        channel.send(*frames, Channel.Flow(active=True))
        while not isinstance(client.next_on(1).decode(), Channel.FlowOk):
            pass
        channel.call(Channel.Close(0, "", 0, 0))
    else:
        channel.send(*frames)
        channel.expect_close(403, REFUSED.format(refused, "amq.topic"))


def test_delayed_topic_exchange_is_a_topic_exchange(client: RawClient) -> None:
    channel = client.channel(1)
    channel.send(*_publish("later", "no", {"x-delay": 1}))
    channel.expect_close(403, REFUSED.format("no", "later"))


@pytest.mark.parametrize(("key", "status"), [("ann./.a", 200), ("other", 403)])
def test_publish_over_http(served: Served, key: str, status: int) -> None:
    message = {"routing_key": key, "payload": "x", "properties": {}}
    with served.client(USER) as api:
        answer = api.post("/api/exchanges/%2F/amq.topic/publish", json=message)
    assert answer.status_code == status
    assert status == 200 or answer.json()["reason"] == REFUSED.format(key, "amq.topic")


@pytest.mark.parametrize(("key", "status"), [("news.http", 201), ("other", 403)])
def test_bind_over_http(served: Served, key: str, status: int) -> None:
    path = "/api/bindings/%2F/e/amq.topic/q/q"
    with served.client(USER) as api:
        assert api.post(path, json={"routing_key": key}).status_code == status
        if status == 201:
            assert api.delete(f"{path}/{key}").status_code == 204


def test_revoked_topic_permission_affects_the_next_message(served: Served) -> None:
    """Also if the route of the message is cached."""
    narrow = TopicPermissionDefinition(USER, "/", "amq.topic", "^never$", ".*")
    with RawClient(*served.threaded.amqp_address) as raw:
        channel = raw.handshake("/", USER, USER).channel()
        channel.confirm_select()
        for number in (1, 2, 3):
            channel.publish("amq.topic", "ann./.same")
            channel.confirmed(number) if number == 1 else channel.expect(Basic.Ack)
        served.on_loop(lambda hub: hub.users.set_topic_permission(narrow))
        channel.publish("amq.topic", "ann./.same")
        channel.expect_close(403, "access to topic")
    served.on_loop(_permit)


def test_variables_in_patterns_are_escaped() -> None:
    """A user called `.*` may publish to `.*` and nowhere else."""
    text = expand("^{username}-{vhost}$", username=".*", vhost="a|b")
    assert pattern(text).search(".*-a|b") is not None
    assert pattern(text).search("anything-a") is None


def test_bad_pattern_is_refused(served: Served) -> None:
    bad = TopicPermissionDefinition(USER, "/", "amq.topic", "(", ".*")
    with pytest.raises(PreconditionFailed, match="invalid pattern"):
        served.on_loop(lambda hub: hub.users.set_topic_permission(bad))


# Every action with routing keys ------------------------------------------------------------------

BOUND, NEW = "topic.bound", "topic.new"
TOPICS = "/api/bindings/%2F/e/topics"
ASKED: dict[Action, tuple[str, tuple[Any, ...], tuple[str, str, Any]]] = {
    Action.PUBLISH: (
        BOUND,
        _publish("topics", BOUND),
        (
            "POST",
            "/api/exchanges/%2F/topics/publish",
            {"routing_key": BOUND, "payload": "x", "properties": {}},
        ),
    ),
    Action.QUEUE_BIND: (
        NEW,
        (Queue.Bind(queue="held", exchange="topics", routing_key=NEW),),
        ("POST", f"{TOPICS}/q/held", {"routing_key": NEW}),
    ),
    Action.QUEUE_UNBIND: (
        BOUND,
        (Queue.Unbind(queue="held", exchange="topics", routing_key=BOUND),),
        ("DELETE", f"{TOPICS}/q/held/{BOUND}", None),
    ),
    Action.EXCHANGE_BIND: (
        NEW,
        (Exchange.Bind(destination="to", source="topics", routing_key=NEW),),
        ("POST", f"{TOPICS}/e/to", {"routing_key": NEW}),
    ),
    Action.EXCHANGE_UNBIND: (
        BOUND,
        (Exchange.Unbind(destination="to", source="topics", routing_key=BOUND),),
        ("DELETE", f"{TOPICS}/e/to/{BOUND}", None),
    ),
}
"""The routing key, the AMQP methods and the HTTP request."""
PATTERNS = [("^topic[.]", True), ("^other$", False), ("", False)]


def _reset(hub: Broker, action: Action, text: str) -> None:
    """Create one binding of each kind; the other topic permission is the opposite."""
    vhost = hub.vhosts["/"]
    for name in ("held", "topics"):
        if name in vhost.queues:
            vhost.delete_queue(name)
        if name in vhost.exchanges:
            vhost.delete_exchange(name)
    vhost.declare_queue(QueueSpec("held"))
    vhost.declare_exchange(ExchangeSpec("topics", "topic"))
    vhost.bind("topics", Destination(DestinationKind.QUEUE, "held"), BOUND, {})
    vhost.bind("topics", Destination(DestinationKind.EXCHANGE, "to"), BOUND, {})
    patterns = {
        each.value: "" if text == "^topic[.]" else ".*" for each in TOPIC_PERMISSIONS.values()
    }
    patterns[TOPIC_PERMISSIONS[action].value] = text
    hub.users.set_topic_permission(TopicPermissionDefinition(USER, "/", "topics", **patterns))


def _state(hub: Broker) -> tuple[set[str], int]:
    vhost = hub.vhosts["/"]
    return {str(one) for one in vhost.bindings()}, vhost.queues["held"].ready_count


@pytest.mark.parametrize(("text", "is_allowed"), PATTERNS)
@pytest.mark.parametrize("action", TOPIC_PERMISSIONS)
def test_every_action_over_amqp(
    served: Served, client: RawClient, action: Action, text: str, is_allowed: bool
) -> None:
    served.on_loop(lambda hub: _reset(hub, action, text))
    before = served.on_loop(_state)
    key, frames, _ = ASKED[action]
    channel = client.channel(1)
    channel.send(*frames)
    if is_allowed:
        channel.send(Channel.Flow(active=True))
        while not isinstance(client.next_on(1).decode(), Channel.FlowOk):
            pass
        channel.call(Channel.Close(0, "", 0, 0))
    else:
        channel.expect_close(403, REFUSED.format(key, "topics"))
    assert (served.on_loop(_state) != before) is is_allowed


@pytest.mark.parametrize(("text", "is_allowed"), PATTERNS)
@pytest.mark.parametrize("action", TOPIC_PERMISSIONS)
def test_every_action_over_http(
    served: Served, action: Action, text: str, is_allowed: bool
) -> None:
    served.on_loop(lambda hub: _reset(hub, action, text))
    before = served.on_loop(_state)
    key, _, (method, path, given) = ASKED[action]
    with served.client(USER) as api:
        answer = api.request(method, path, json=given)
    if is_allowed:
        assert answer.status_code in (200, 201, 204), answer.text
    else:
        assert answer.status_code == 403
        assert answer.json()["reason"] == REFUSED.format(key, "topics")
    assert (served.on_loop(_state) != before) is is_allowed


def test_every_action_with_keys_requires_a_topic_permission() -> None:
    assert {str(action) for action in TOPIC_PERMISSIONS} == {
        "basic.publish", "queue.bind", "queue.unbind", "exchange.bind", "exchange.unbind",
    }  # fmt: skip
    assert set(TOPIC_PERMISSIONS) <= set(Action)


def test_unauthenticated_http_client_gets_401(served: Served) -> None:
    with httpx.Client(base_url=served.url, timeout=60) as nobody:
        assert nobody.get("/api/topic-permissions").status_code == 401
