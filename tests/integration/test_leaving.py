"""How clients leave, and what they leave behind."""

from __future__ import annotations

import gc
import time
import weakref
from collections import deque
from collections.abc import Iterator

import pytest
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue
from pamqp.header import ContentHeader

from amqp_server.session import Session
from leveret.launch import ThreadedBroker, in_process_settings
from leveret.model.errors import PreconditionFailed
from tests.support import wire
from tests.support.rawclient import RawChannel, RawClient


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker(in_process_settings()) as started:
        yield started


@pytest.fixture
def channel(broker: ThreadedBroker) -> Iterator[RawChannel]:
    with RawClient(*broker.amqp_address) as client:
        yield client.handshake("/").channel()


def session_of(broker: ThreadedBroker) -> Session:
    assert broker.running is not None
    (session,) = broker.running.amqp.sessions
    return session


def test_a_queue_of_one_connection_is_freed_with_its_last_consumer(broker, channel):
    queue = channel.declare("", exclusive=True, auto_delete=True).queue
    left = broker.call(lambda: weakref.ref(session_of(broker).vhost.queues[queue]))
    channel.cancel(channel.consume(queue))
    channel.declare("other")  # by now the turn in which it went has ended

    def is_freed() -> bool:
        broker.running.broker.metrics.sample()  # the last sample may have known it
        gc.collect()
        return left() is None

    assert broker.call(is_freed)


def test_a_queue_of_a_connection_that_published_to_it_is_freed_when_both_have_gone(broker, channel):
    channel.publish("", "other", b"")  # of the same user, who remembers addresses for all
    with RawClient(*broker.amqp_address) as client:
        own = client.handshake("/").channel()
        queue = own.declare("", exclusive=True).queue
        own.publish("", queue, b"")
        own.wait_ready(queue, 1)
        sessions = broker.running.amqp.sessions
        held = broker.call(lambda: next(iter(sessions)).vhost.queues[queue])
        left = [weakref.ref(held), *map(weakref.ref, broker.call(lambda: list(sessions)))]
        del held
    channel.declare("other")
    channel.publish("", "other", b"")
    channel.wait_ready("other", 1)

    def freed() -> int:
        broker.running.broker.metrics.sample()
        gc.collect()
        return sum(one() is None for one in left)

    deadline = time.monotonic() + 60  # its session is in the turn that ends with it
    while broker.call(freed) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_freed(broker, left):
    def freed() -> bool:
        broker.running.broker.metrics.sample()
        broker.running.broker.turn.schedule()  # a turn may hold what it has touched until the next
        return all(one() is None for one in left)

    deadline = time.monotonic() + 60
    while not broker.call(freed):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("nobody_collects")
def test_a_connection_and_its_queue_make_no_circle(broker):
    with RawClient(*broker.amqp_address) as client:
        own = client.handshake("/").channel()
        queue = own.declare("", exclusive=True).queue
        own.call(Confirm.Select())
        own.publish("", queue, b"")
        own.expect(Basic.Ack)
        own.consume("amq.rabbitmq.reply-to", no_ack=True)
        own.consume(queue)
        session = session_of(broker)
        left = [weakref.ref(session), weakref.ref(session.vhost.queues[queue])]
        del session
    wait_until_freed(broker, left)


@pytest.mark.usefixtures("nobody_collects")
@pytest.mark.parametrize("is_durable", [True, False])
def test_a_queue_that_is_deleted_under_its_only_consumer_makes_no_circle(
    broker, channel, is_durable
):
    queue = channel.declare("q", durable=is_durable).queue
    left = broker.call(lambda: weakref.ref(session_of(broker).vhost.queues[queue]))
    channel.consume(queue, exclusive=True)
    channel.call(Queue.Delete(queue=queue))
    wait_until_freed(broker, [left])


@pytest.mark.usefixtures("nobody_collects")
def test_a_connection_that_was_refused_is_not_kept_for_the_time_it_had_to_go(broker, monkeypatch):
    for name in ("CLOSE_GRACE_SECONDS", "DEAF_GRACE_SECONDS"):
        monkeypatch.setattr(f"amqp_server.session.{name}", 3_600)
    with RawClient(*broker.amqp_address) as client:
        client.handshake("/")
        session = session_of(broker)
        left = [weakref.ref(session), weakref.ref(session.line)]
        del session
        client.send_bytes(wire.frame(wire.METHOD, 0, b""))
        client.expect(Connection.Close)
    wait_until_freed(broker, left)


def test_who_leaves_while_a_channel_waits_is_let_go_when_it_is_closed(broker, channel):
    session = session_of(broker)
    broker.call(lambda: setattr(session.channels[1], "inbox", deque()))  # as if held by the disk
    channel.client.send(0, Connection.Close(200, "", 0, 0))
    channel.client.expect_silence()
    broker.call(lambda: session.refuse(1, PreconditionFailed("waited for too long")))
    channel.expect(Channel.Close)
    channel.client.expect(Connection.CloseOk)
    channel.client.expect_end()


def test_who_leaves_while_channels_wait_is_let_go_behind_the_last(broker, channel):
    client, session = channel.client, session_of(broker)
    second = client.channel(2)
    done: list[int] = []

    def hold() -> None:
        for one in session.channels.values():
            one.inbox = deque()

    def go_on(number: int) -> None:
        held = session.channels[number]
        assert held.inbox is not None
        held.inbox.append(lambda: done.append(number))
        held.go_on(lambda: None)

    broker.call(hold)
    client.send(0, Connection.Close(200, "", 0, 0))
    client.expect_silence()
    broker.call(lambda: go_on(second.number))
    client.expect_silence()
    broker.call(lambda: go_on(channel.number))
    client.expect(Connection.CloseOk)
    assert done == [second.number, channel.number]
    client.expect_end()


def test_what_comes_after_the_last_heartbeat_is_not_heard(broker, channel, caplog):
    session = session_of(broker)
    head = wire.encode(1, ContentHeader(0, 1, Basic.Properties()))
    publish = wire.publish(1, "", "q") + head + wire.body(1, b"x")

    def die() -> None:
        session.heartbeat = 10
        session.beat(session.last_received + 26)
        session.receive(publish)

    broker.call(die)
    channel.client.expect_end()
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_connections_share_the_names_of_their_attributes(broker, channel):
    """CPython gives each object a table of its own, 1.3 KB more, when there are 30 of them."""
    session = session_of(broker)
    for one in (session, session.wire, session.channels[1]):
        assert len(vars(one)) < 30
    assert channel.number == 1


def test_what_goes_wrong_at_the_end_of_a_connection_is_told_and_the_rest_is_done(
    broker, channel, monkeypatch, caplog
):
    hub = broker.running.broker
    vhost = hub.vhosts["/"]
    channel.declare("work")
    channel.declare("broken")
    for _ in range(3):
        channel.publish("", "work", b"job")
    channel.wait_ready("work", 3)

    def fail(*args: object, **named: object) -> None:
        raise RecursionError("as if")

    monkeypatch.setattr(vhost.queues["broken"], "remove_consumer", fail)
    with RawClient(*broker.amqp_address) as client:
        own = client.handshake("/").channel()
        spoilt = own.declare("", exclusive=True).queue
        other = own.declare("", exclusive=True).queue
        monkeypatch.setattr(vhost.queues[spoilt], "close", fail)
        second = client.channel(2)
        own.consume("broken")
        own.consume("broken")
        own.consume("work")
        own.deliveries(3)
        second.consume("work")
    channel.wait_ready("work", 3)
    deadline = time.monotonic() + 60
    while broker.call(lambda: len(hub.connections)) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not broker.call(lambda: vhost.queues["work"].consumers)
    assert spoilt not in vhost.queues
    assert other not in vhost.queues
    told = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(told) == 2  # of the channel one for two consumers, and one of the connection
    assert all("unexpected error at the end of" in one for one in told)
