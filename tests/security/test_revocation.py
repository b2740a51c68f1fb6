"""R-41: revoked permissions take effect at once, also on open connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from pamqp.commands import Basic, Connection

from leveret.broker import Broker
from leveret.broker.access.passwords import hash_password
from leveret.model.definitions import PermissionDefinition
from leveret.queues.spec import QueueSpec
from tests.http.conftest import Served, serve
from tests.support.polling import wait_until
from tests.support.rawclient import RawClient

NAMES = ["plain", "a.b", "^.*$", "x|y", "(", "[^a]+", "{username}"]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve() as threaded:
        yield Served(threaded)


@pytest.fixture
def user(served: Served, request: pytest.FixtureRequest) -> Iterator[str]:
    name = getattr(request, "param", "eve")
    served.on_loop(lambda hub: _create_user(hub, name))
    yield name
    served.on_loop(lambda hub: _delete_user(hub, name))


def _create_user(hub: Broker, name: str) -> None:
    if "side" not in hub.vhosts:
        hub.add_vhost("side")
    for queue in ("mine", "other"):
        hub.vhosts["side"].delete_queue(queue)
        hub.vhosts["side"].declare_queue(QueueSpec(queue))
    hub.users.put_user(name, hash_password("pw"), ())
    hub.users.put_user("bystander", hash_password("pw"), ())
    for each in (name, "bystander"):
        hub.users.set_permission(PermissionDefinition(each, "side", ".*", ".*", ".*"))


def _delete_user(hub: Broker, name: str) -> None:
    if name in hub.users.by_name:
        hub.delete_user(name)


def _expect_refused_login(served: Served, name: str, password: str) -> None:
    with RawClient(*served.threaded.amqp_address) as client:
        client.start()
        client.login(name, password)
        client.expect_close(403)


def _login(served: Served, name: str, **options: object) -> RawClient:
    client = RawClient(*served.threaded.amqp_address)
    return client.handshake("side", name, "pw", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("user", NAMES, indirect=True)
def test_consumers_are_cancelled_without_read_permission(served: Served, user: str) -> None:
    with _login(served, user) as client, _login(served, "bystander") as other:
        channel, theirs = client.channel(), other.channel()
        channel.consume("mine", "m")
        channel.consume("other", "o")
        theirs.consume("mine", "t")
        only = PermissionDefinition(user, "side", ".*", ".*", "^other$")
        served.on_loop(lambda hub: hub.users.set_permission(only))
        assert channel.expect(Basic.Cancel).consumer_tag == "m"
        channel.publish("", "other", b"still")
        assert channel.deliver().body == b"still"
        channel.publish("", "mine", b"theirs")
        assert theirs.deliver().body == b"theirs"


@pytest.mark.parametrize("user", NAMES, indirect=True)
def test_deleted_permission_ends_consuming_and_publishing(served: Served, user: str) -> None:
    """The permission is deleted over HTTP while the user publishes and consumes."""
    with _login(served, user) as client, _login(served, "bystander") as other:
        consuming, publishing, theirs = client.channel(1), client.channel(2), other.channel()
        consuming.consume("mine", "m", no_ack=True)
        for channel, text in ((publishing, b"own"), (theirs, b"theirs")):
            channel.publish("", "mine", text)
            assert consuming.deliver().body == text
        with served.client() as api:
            path = f"/api/permissions/side/{quote(user, '')}"
            assert api.delete(path).status_code == 204
            assert api.get(path).status_code == 404
        theirs.publish("", "mine", b"not for them")
        theirs.qos(1)
        assert consuming.expect(Basic.Cancel).consumer_tag == "m"
        consuming.qos(1)  # so nothing was delivered after that
        publishing.publish("", "mine", b"too late")
        publishing.expect_close(403, "write access to exchange 'amq.default' in vhost 'side'")
        assert served.on_loop(_counts) == (1, 0)


def test_channel_is_closed_if_the_client_does_not_support_cancel(served: Served, user: str) -> None:
    with _login(served, user, capabilities={}) as client:
        channel = client.channel()
        channel.consume("mine")
        served.on_loop(lambda hub: hub.users.clear_permission(user, "side"))
        channel.expect_close(403, "read access to queue 'mine' in vhost 'side' refused")


def test_unacked_messages_stay_with_a_cancelled_consumer(served: Served, user: str) -> None:
    with _login(served, user) as client:
        channel = client.channel()
        channel.consume("mine", "m")
        channel.publish("", "mine", b"x")
        got = channel.deliver()
        served.on_loop(lambda hub: hub.users.clear_permission(user, "side"))
        channel.expect(Basic.Cancel)
        channel.ack(got.method.delivery_tag)
        assert served.on_loop(_counts) == (0, 0)


def _counts(hub: Broker) -> tuple[int, int]:
    queue = hub.vhosts["side"].queues["mine"]
    return queue.ready_count, queue.unacked_count


def test_publishes_are_refused_on_a_cached_route(served: Served, user: str) -> None:
    with _login(served, user) as client:
        channel = client.channel()
        for _ in range(3):
            channel.publish("amq.direct", "k")
        channel.qos(1)
        only = PermissionDefinition(user, "side", ".*", "^mine$", ".*")
        served.on_loop(lambda hub: hub.users.set_permission(only))
        channel.publish("amq.direct", "k")
        channel.expect_close(403, "write access to exchange 'amq.direct'")


@pytest.mark.parametrize("user", NAMES, indirect=True)
def test_connections_of_a_deleted_user_are_closed(served: Served, user: str) -> None:
    with _login(served, user) as client, _login(served, "bystander") as other:
        channel = client.channel()
        channel.consume("mine")
        served.on_loop(lambda hub: hub.delete_user(user))
        client.expect_close(320, f"user '{user}' was deleted")
        other.channel()
    _expect_refused_login(served, user, "pw")


def test_connections_of_a_deleted_vhost_are_closed(served: Served, user: str) -> None:
    with _login(served, user) as client:
        client.channel().consume("mine")
        served.on_loop(lambda hub: hub.delete_vhost("side"))
        client.expect_close(320, "vhost 'side' is deleted")


def test_new_password_affects_new_logins_only(served: Served, user: str) -> None:
    """As with RabbitMQ, open connections stay; an administrator can close them."""
    with _login(served, user) as client:
        served.on_loop(lambda hub: hub.users.put_user(user, hash_password("new"), ()))
        client.channel().qos(1)
        _expect_refused_login(served, user, "pw")
        with RawClient(*served.threaded.amqp_address) as other:
            other.start()
            other.login(user, "new")
            other.expect(Connection.Tune)


def _recreate_user(hub: Broker, name: str) -> None:
    hub.delete_user(name)
    hub.users.put_user(name, hash_password("another's"), ())
    hub.users.set_permission(PermissionDefinition(name, "side", ".*", ".*", ".*"))


def _change_password(hub: Broker, name: str) -> None:
    hub.users.put_user(name, hash_password("new"), ())


@pytest.mark.parametrize("change", [_recreate_user, _change_password])
def test_vhost_is_not_opened_after_user_or_password_changed(
    served: Served, user: str, change: Callable[[Broker, str], None]
) -> None:
    with RawClient(*served.threaded.amqp_address) as client:
        client.start()
        client.login(user, "pw")
        client.expect(Connection.Tune)
        served.on_loop(lambda hub: change(hub, user))
        client.tune()
        client.send(0, Connection.Open("side"))
        client.expect_close(530, f"user '{user}' was deleted or has another password")


def test_long_poll_get_is_refused_after_permission_was_revoked(served: Served, user: str) -> None:
    known = served.on_loop(lambda hub: hub.users.by_name[user])
    served.on_loop(
        lambda hub: hub.users.put_user(user, known.password_hash, ("management",), known.hashing)
    )
    with served.client(user, "pw") as api, ThreadPoolExecutor(1) as pool:
        assert api.get("/api/whoami").status_code == 200
        ask = {"count": 1, "wait": 20, "ackmode": "ack_requeue_false"}
        waiting = pool.submit(api.post, "/api/queues/side/mine/get", json=ask)
        with served.client(user, "pw") as other:
            assert other.get("/api/whoami").status_code == 200
        nothing = PermissionDefinition(user, "side", ".*", ".*", "")
        served.on_loop(lambda hub: hub.users.set_permission(nothing))
        with _login(served, "bystander") as client:
            channel = client.channel()
            channel.publish("", "mine", b"not for everybody")
            assert waiting.result().status_code == 403
            queue = served.hub.vhosts["side"].queues["mine"]
            assert served.on_loop(lambda hub: queue.ready_count) == 1


def test_publish_cache_is_not_shared_between_users(served: Served, user: str):
    """Routes are cached for all connections of one user, but not for other users."""
    rights = PermissionDefinition("bystander", "side", ".*", "^mine$", ".*")
    served.on_loop(lambda hub: hub.users.set_permission(rights))
    with _login(served, user) as client, _login(served, "bystander") as other:
        channel, others = client.channel(), other.channel()
        for _ in range(3):
            channel.publish("amq.direct", "k")
        channel.qos(1)
        others.publish("amq.direct", "k")
        others.expect_close(403, "write access to exchange 'amq.direct' in vhost 'side' refused")


def test_deferred_get_is_authorized_again(served: Served, user: str):
    """It waits because the client does not read; the user had the permission when it was sent."""
    messages = 300
    with _login(served, "bystander") as other:
        other.channel().fill("mine", [b"x" * 65_536] * messages)
    queue = served.hub.vhosts["side"].queues["mine"]
    with _login(served, user) as client:
        channel = client.channel()
        channel.send(*[Basic.Get(0, "mine", True)] * messages)
        wait_until(
            lambda: served.on_loop(
                lambda hub: any(channel.is_waiting for channel in _channels_of(hub, user))
            )
        )
        left = served.on_loop(lambda hub: queue.ready_count)
        assert 0 < left < messages
        nothing = PermissionDefinition(user, "side", ".*", ".*", "")
        served.on_loop(lambda hub: hub.users.set_permission(nothing))
        for _ in range(messages - left):
            client.content(Basic.GetOk, channel.number)
        channel.expect_close(403)
        assert served.on_loop(lambda hub: queue.ready_count) == left


def _channels_of(hub: Broker, user: str) -> list[Any]:
    return [
        channel
        for connection in hub.connections
        if connection.user.name == user
        for channel in connection.channels.values()
    ]
