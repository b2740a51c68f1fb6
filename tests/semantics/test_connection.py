"""Rows C-01 to C-16: handshake, tuning, heartbeats and closing of a connection."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import pytest
from pamqp import commands
from pamqp.commands import Connection

from tests.support import wire
from tests.support.brokers import running_leveret
from tests.support.fixtures import WITHOUT_HTTP
from tests.support.rawclient import ConnectionEndedError, NoFrameError

LOGIN_REFUSED = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x00\x00\x09\x02",
        b"\0" * 8,
    ],
    ids=["http", "amqp-1.0", "amqp-0-9-2", "zeros"],
)
def test_c001_unknown_protocol_header_is_answered_with_amqp_0_9_1(raw, greeting):
    client = raw()
    client.send_bytes(greeting)
    assert client.read_bytes(8) == wire.PROTOCOL_HEADER
    client.expect_end()


def test_c001_amqp_0_8_header(raw, expected):
    client = raw()
    client.send_bytes(b"AMQP\x01\x01\x08\x00")
    first = client.read_bytes(8)
    # RabbitMQ answers with a method frame (connection.start); Leveret only supports 0-9-1.
    assert first[:4] == expected(leveret=wire.PROTOCOL_HEADER[:4], rabbitmq=b"\x01\0\0\0")


@pytest.fixture
def impatient_broker(broker):
    """A broker with a short handshake timeout, and the timeout."""
    if broker.is_rabbitmq:
        yield broker, 10
        return
    limit = {"LEVERET_HANDSHAKE_TIMEOUT": "3"}
    with running_leveret(environment=WITHOUT_HTTP | limit) as target:
        yield target, 3


def test_c002_incomplete_handshake_is_closed_silently(impatient_broker):
    target, limit = impatient_broker
    began = time.monotonic()
    with (
        target.socket() as unanswered,
        target.socket() as silent_client,
        target.socket() as halfway,
    ):
        unanswered.start()
        halfway.send_bytes(wire.PROTOCOL_HEADER[:5])
        for client in (silent_client, halfway, unanswered):
            with pytest.raises(ConnectionEndedError):
                client.next_frame()
    assert time.monotonic() - began > limit - 0.5


@pytest.mark.parametrize(
    ("user", "password"), [("guest", "wrong"), ("nobody", "guest")], ids=["password", "user"]
)
def test_c003_login_error_is_the_same_for_wrong_user_and_password(raw, user, password):
    client = raw()
    client.start()
    client.login(user, password)
    client.expect_close(403, LOGIN_REFUSED)


def test_c004_bad_login_without_the_capability_is_closed_after_a_delay(raw):
    client = raw()
    client.start()
    began = time.monotonic()
    client.login("guest", "wrong", capabilities={})
    with pytest.raises(ConnectionEndedError):
        client.next_frame()
    assert time.monotonic() - began > 0.9


def test_c005_unknown_mechanism(raw, expected):
    client = raw()
    client.start()
    client.login(mechanism="NONSENSE")
    if expected(leveret=True, rabbitmq=False):
        client.expect_close(503)
    else:
        with pytest.raises(ConnectionEndedError):
            client.next_frame()


def test_c005_amqplain_is_accepted(raw, broker):
    client = raw()
    assert {"PLAIN", "AMQPLAIN"} <= set(client.start().mechanisms.split())
    login = wire.table(
        ("LOGIN", wire.typed("S", wire.longstr(broker.user))),
        ("PASSWORD", wire.typed("S", wire.longstr(broker.password))),
    )
    client.login(mechanism="AMQPLAIN", response=login[4:].decode("latin-1"))
    client.expect(Connection.Tune)


def start_ok_of(size, broker):
    """start-ok with a payload of this size."""
    about: Any = {"padding": ""}
    plain = wire.plain(broker.user, broker.password)
    padding = size + 8 - len(wire.encode(0, Connection.StartOk(about, "PLAIN", plain, "en_US")))
    about["padding"] = "x" * padding
    return Connection.StartOk(about, "PLAIN", plain, "en_US")


def test_c020_start_ok_of_4096_bytes_is_accepted(raw, broker):
    client = raw()
    client.start()
    client.send(0, start_ok_of(4096, broker))
    client.expect(Connection.Tune)


def test_c020_longer_start_ok_is_refused(raw, broker, expected):
    client = raw()
    client.start()
    client.send(0, start_ok_of(4097, broker))
    if expected(leveret=True, rabbitmq=False):
        client.expect_close(501, "frame of 4097 bytes is larger than 4096")
    else:
        client.expect_silence()  # it is disconnected after some seconds


def test_c006_missing_vhost(raw, broker):
    client = raw()
    client.start()
    client.login(broker.user, broker.password)
    client.expect(Connection.Tune)
    client.tune()
    client.send(0, Connection.Open("no-such-vhost"))
    close = client.expect_close(530, "NOT_ALLOWED - vhost no-such-vhost not found")
    assert (close.class_id, close.method_id) == (10, 40)


def test_c007_tune_ok_outside_the_offer_is_refused(raw, broker, expected):
    # All at once, because RabbitMQ 3.10 takes three seconds to reset each connection.
    bad = {
        "frame_max above": (2047, 131073),
        "channel_max above": (2048, 131072),
        "frame_max none": (2047, 0),
        "channel_max none": (0, 131072),
        "frame_max too small": (2047, 4095),
    }
    clients = {}
    for case, (channel_max, frame_max) in bad.items():
        client = clients[case] = raw()
        client.start()
        client.login(broker.user, broker.password)
        offer = client.expect(Connection.Tune)
        assert (offer.channel_max, offer.frame_max, offer.heartbeat) == (2047, 131072, 60)
        client.tune(channel_max, frame_max)
        client.send(0, Connection.Open(broker.vhost))
    for case, client in clients.items():
        if expected(leveret=True, rabbitmq=False):
            client.expect_close(530)
        else:
            with pytest.raises(ConnectionEndedError):
                client.expect(Connection.OpenOk)
                pytest.fail(case)


def test_c007_smallest_frame_size_is_accepted(connect):
    connect(frame_max=4096, channel_max=1).channel(1)


def test_c008_server_capabilities(raw):
    start = raw().start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert "en_US" in start.locales.split()
    capabilities = start.server_properties["capabilities"]
    assert {name: capabilities.get(name) for name in CAPABILITIES} == dict.fromkeys(
        CAPABILITIES, True
    )
    assert {"product", "version", "platform", "copyright", "information", "cluster_name"} <= set(
        start.server_properties
    )


def test_c009_heartbeats(connect):
    silent, chatty, off = connect(heartbeat=1), connect(heartbeat=1), connect()
    trickle = [bytes([byte]) for byte in wire.frame(wire.HEARTBEAT, 0) * 30]
    began = time.monotonic()
    beats = 0
    with pytest.raises(ConnectionEndedError):
        while trickle:
            chatty.send_bytes(trickle.pop(0))
            try:
                frame = silent.next_frame(0.3)
            except NoFrameError:
                continue
            assert frame == (wire.HEARTBEAT, 0, b"")
            beats += 1
    assert time.monotonic() - began > 1.5
    assert beats >= 2
    chatty.send_bytes(b"".join(trickle))
    assert chatty.next_frame() == (wire.HEARTBEAT, 0, b"")
    chatty.channel()
    off.expect_silence(window=0.01)
    off.channel()
    silent.drop()


def test_c010_heartbeat_frame_on_a_channel(client):
    client.channel()
    client.send_bytes(wire.frame(wire.HEARTBEAT, 1))
    client.expect_close(505)


def test_c010_heartbeat_frame_with_a_payload(client):
    client.send_bytes(wire.frame(wire.HEARTBEAT, 0, b"x"))
    client.expect_close(501)


def test_c011_channel_method_on_channel_0(client):
    client.send(0, commands.Queue.Declare(queue="q"))
    client.expect_close(504)


@pytest.mark.parametrize("again", ["start-ok", "tune-ok"])
def test_c011_handshake_method_repeated(client, again):
    if again == "start-ok":
        client.login()
    else:
        client.tune()
    client.expect_close(504)


def test_c012_connection_open_on_an_open_channel(client, broker):
    client.channel()
    client.send(1, Connection.Open(broker.vhost))
    client.expect_close(503)


def test_c012_connection_open_on_a_channel_that_is_not_open(client, broker):
    client.send(1, Connection.Open(broker.vhost))
    client.expect_close(504)


def test_c013_messages_published_before_connection_close_are_kept(connect, channel, names):
    queue = names.queue()
    channel.declare(queue)
    publisher = connect()
    other = publisher.channel()
    for number in range(200):
        other.publish("", queue, b"%d" % number)
    publisher.send(0, Connection.Close(200, "bye", 0, 0))
    publisher.expect(Connection.CloseOk)
    channel.wait_ready(queue, 200)


def test_c013_messages_behind_a_durable_declare_are_kept_at_close(connect, channel, names):
    queue = names.queue()
    publisher = connect()
    other = publisher.channel()
    message = wire.publish(1, "", queue) + wire.content_header(1, 1) + wire.body(1, b"x")
    other.send(
        commands.Queue.Declare(queue=queue, durable=True),
        message * 200,
        wire.encode(0, Connection.Close(200, "bye", 0, 0)),
    )
    other.expect(commands.Queue.DeclareOk)
    publisher.expect(Connection.CloseOk)
    channel.wait_ready(queue, 200)


def test_c013_messages_published_before_channel_close_are_kept(channel, client, names):
    queue = names.queue()
    message = wire.publish(1, "", queue) + wire.content_header(1, 1) + wire.body(1, b"x")
    channel.send(
        commands.Queue.Declare(queue=queue, durable=True),
        message * 200,
        commands.Channel.Close(200, "bye", 0, 0),
    )
    channel.expect(commands.Queue.DeclareOk)
    channel.expect(commands.Channel.CloseOk)
    client.channel(2).wait_ready(queue, 200)


def test_c013_exclusive_queues_are_deleted_before_close_ok(connect, channel, names):
    queue = names.queue()
    owner = connect()
    owner.channel().declare(queue, exclusive=True)
    owner.send(0, Connection.Close(200, "bye", 0, 0))
    owner.expect(Connection.CloseOk)
    channel.refused(commands.Queue.Declare(queue=queue, passive=True), 404)


def test_c013_methods_behind_connection_close_are_ignored(connect, channel, names):
    queue, later = names.queue(), names.queue()
    other = connect().channel()
    close = wire.encode(0, Connection.Close(200, "bye", 0, 0))
    declares = [commands.Queue.Declare(queue=name, durable=True) for name in (queue, later)]
    other.send(declares[0], close, declares[1])
    other.expect(commands.Queue.DeclareOk)
    other.client.expect(Connection.CloseOk)
    channel.refused(commands.Queue.Declare(queue=later, passive=True), 404)


@pytest.mark.parametrize("is_deferred", [False, True])
def test_c013_client_may_write_after_close_ok_until_it_closes_the_socket(
    connect, channel, names, is_deferred
):
    queue = names.queue()
    client = connect()
    if is_deferred:
        client.channel().send(commands.Queue.Declare(queue=queue, durable=True))
    else:
        channel.declare(queue)
    client.send(0, Connection.Close(200, "bye", 0, 0))
    client.expect(Connection.CloseOk)
    write_much(client, queue)
    client.expect_silence(0)
    client.drop()
    assert channel.ready(queue) == 0


def write_much(client, queue):
    """Publish more than the buffers of the sockets hold; raises if the peer does not read."""
    body = wire.content_header(1, 100_000) + wire.body(1, bytes(100_000))
    client._socket.settimeout(client.timeout)
    for _ in range(200):
        client._socket.sendall(wire.publish(1, "", queue) + body)


def test_c013_client_that_keeps_its_socket_open_is_disconnected(connect):
    client = connect(heartbeat=1)
    client.send(0, Connection.Close(200, "bye", 0, 0))
    client.expect(Connection.CloseOk)
    client.expect_end()


def test_c014_simultaneous_closes_are_both_answered(client):
    client.send(0, commands.Queue.Declare(queue="q"), Connection.Close(200, "bye", 0, 0))
    close = client.expect(Connection.Close)
    assert close.reply_code == 504
    client.expect(Connection.CloseOk)
    client.send(0, Connection.CloseOk())
    client.expect_end()


def test_c015_everything_after_the_servers_close_is_ignored(client, connect, names):
    queue = names.queue()
    checker = connect().channel()
    checker.declare(queue)
    channel = client.channel()
    client.send(0, commands.Queue.Declare(queue="q"))
    assert client.expect(Connection.Close).reply_code == 504
    channel.publish("", queue)
    client.send(2, commands.Channel.Open())
    client.expect_silence()
    client.send(0, Connection.CloseOk())
    client.expect_end()
    assert checker.ready(queue) == 0


def test_c015_client_may_write_after_the_servers_close(client, channel, queue):
    client.send(0, commands.Queue.Declare(queue="q"))
    assert client.expect(Connection.Close).reply_code == 504
    write_much(client, queue)
    client.send(0, Connection.CloseOk())
    client.expect_end()


def test_c016_operator_closes_the_connection(client, broker, expected):
    if expected(leveret=True, rabbitmq=False):
        with running_leveret(environment=WITHOUT_HTTP) as other, other.connect() as client:
            os.kill(other.pid, signal.SIGTERM)
            client.expect_close(320, "CONNECTION_FORCED")
        return
    close_through_http(broker, client)
    client.expect_close(320, "CONNECTION_FORCED")


def close_through_http(broker, client):
    host, port = client._socket.getsockname()
    name = quote(f"{host}:{port} -> {broker.host}:{broker.port}", safe="")
    request = urllib.request.Request(
        f"http://{broker.host}:{broker.http_port}/api/connections/{name}", method="DELETE"
    )
    login = b64encode(f"{broker.user}:{broker.password}".encode()).decode()
    request.add_header("Authorization", f"Basic {login}")
    deadline = time.monotonic() + 30  # the management database learns of connections after a delay
    while True:
        try:
            urllib.request.urlopen(request).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
