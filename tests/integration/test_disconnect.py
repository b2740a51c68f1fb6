"""Disconnected clients: their objects are freed, and close is answered in every state."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue
from pamqp.header import ContentHeader

from leveret.amqp_server.connection import AmqpConnection
from leveret.amqp_server.flow_control import PauseReason
from leveret.launch import ThreadedBroker, in_process_settings
from leveret.model.errors import PreconditionFailed
from tests.support import wire
from tests.support.polling import wait_until
from tests.support.rawclient import RawChannel, RawClient
from tests.support.references import reference_to


@pytest.fixture
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker(in_process_settings()) as broker:
        yield broker


@pytest.fixture
def channel(broker: ThreadedBroker) -> Iterator[RawChannel]:
    with RawClient(*broker.amqp_address) as client:
        yield client.handshake("/").channel()


def connection_of(broker: ThreadedBroker) -> AmqpConnection:
    assert broker.running is not None
    (connection,) = broker.running.amqp.connections
    return connection


def test_exclusive_queue_is_freed_with_its_last_consumer(broker, channel):
    queue = channel.declare("", exclusive=True, auto_delete=True).queue
    reference = broker.call(lambda: reference_to(connection_of(broker).vhost.queues[queue]))
    channel.cancel(channel.consume(queue))
    channel.declare("other")  # the tick in which the queue was deleted has ended by now

    def is_freed() -> bool:
        broker.running.broker.metrics.sample()  # the last sample may refer to it
        gc.collect()
        return reference() is None

    assert broker.call(is_freed)


def test_exclusive_queue_with_cached_routes_is_freed_with_its_connection(broker, channel):
    channel.publish("", "other", b"")  # by the same user: the publish cache is shared
    with RawClient(*broker.amqp_address) as client:
        own = client.handshake("/").channel()
        queue = own.declare("", exclusive=True).queue
        own.publish("", queue, b"")
        own.wait_ready(queue, 1)
        connections = broker.running.amqp.connections
        target = broker.call(lambda: next(iter(connections)).vhost.queues[queue])
        references = [
            reference_to(target),
            *map(weakref.ref, broker.call(lambda: list(connections))),
        ]
        del target
    channel.declare("other")
    channel.publish("", "other", b"")
    channel.wait_ready("other", 1)

    def freed() -> int:
        broker.running.broker.metrics.sample()
        gc.collect()
        return sum(reference() is None for reference in references)

    # The current tick may still refer to its connection.
    wait_until(lambda: broker.call(freed) >= 2)


def wait_until_freed(broker, references):
    def freed() -> bool:
        broker.running.broker.metrics.sample()
        broker.running.broker.scheduler.schedule()  # a tick may hold its queues until the next
        return all(reference() is None for reference in references)

    wait_until(lambda: broker.call(freed))


@pytest.mark.usefixtures("no_garbage_collection")
def test_connection_and_its_queue_are_freed_without_garbage_collection(broker):
    with RawClient(*broker.amqp_address) as client:
        own = client.handshake("/").channel()
        queue = own.declare("", exclusive=True).queue
        own.call(Confirm.Select())
        own.publish("", queue, b"")
        own.expect(Basic.Ack)
        own.consume("amq.rabbitmq.reply-to", no_ack=True)
        own.consume(queue)
        connection = connection_of(broker)
        references = [weakref.ref(connection), reference_to(connection.vhost.queues[queue])]
        del connection
    wait_until_freed(broker, references)


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("is_durable", [True, False])
def test_deleted_queue_is_freed_without_garbage_collection(broker, channel, is_durable):
    queue = channel.declare("q", durable=is_durable).queue
    reference = broker.call(lambda: reference_to(connection_of(broker).vhost.queues[queue]))
    channel.consume(queue, exclusive=True)
    channel.call(Queue.Delete(queue=queue))
    wait_until_freed(broker, [reference])


@pytest.mark.usefixtures("no_garbage_collection")
def test_failed_connection_is_freed_before_its_grace_time_ends(broker, monkeypatch):
    for name in ("CLOSE_GRACE_SECONDS", "LOST_FRAMING_GRACE_SECONDS"):
        monkeypatch.setattr(f"leveret.amqp_server.connection.{name}", 3_600)
    with RawClient(*broker.amqp_address) as client:
        client.handshake("/")
        connection = connection_of(broker)
        references = [weakref.ref(connection), weakref.ref(connection.transport)]
        del connection
        client.send_bytes(wire.frame(wire.METHOD, 0, b""))
        client.expect(Connection.Close)
    wait_until_freed(broker, references)


def test_close_while_a_channel_waits_is_answered_when_the_channel_is_closed(broker, channel):
    connection = connection_of(broker)
    broker.call(lambda: connection.channels[1].begin_waiting())  # as for the disk
    channel.client.send(0, Connection.Close(200, "", 0, 0))
    channel.client.expect_silence()
    broker.call(lambda: connection.refuse(1, PreconditionFailed("waited too long")))
    channel.expect(Channel.Close)
    channel.client.expect(Connection.CloseOk)


def test_unexpected_error_in_a_deferred_method_closes_the_connection(broker, channel, caplog):
    connection = connection_of(broker)

    def fail() -> None:
        raise RecursionError("error of the test")

    def resume() -> None:
        connection.channels[1].begin_waiting()
        connection.channels[1].resume(fail)

    broker.call(resume)
    channel.client.expect_close(541, "INTERNAL_ERROR")
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1 and "unexpected error in a deferred method" in errors[0]


def test_close_while_channels_wait_is_answered_after_the_last_of_them(broker, channel):
    client, connection = channel.client, connection_of(broker)
    second = client.channel(2)
    done: list[int] = []

    def begin_waiting() -> None:
        for waiting in connection.channels.values():
            waiting.begin_waiting()

    def resume(number: int) -> None:
        waiting = connection.channels[number]
        assert waiting._deferred is not None
        waiting._deferred.append(lambda: done.append(number))
        waiting.resume(lambda: None)

    broker.call(begin_waiting)
    client.send(0, Connection.Close(200, "", 0, 0))
    client.expect_silence()
    broker.call(lambda: resume(second.number))
    client.expect_silence()
    broker.call(lambda: resume(channel.number))
    client.expect(Connection.CloseOk)
    assert done == [second.number, channel.number]


def test_connection_that_is_not_read_is_read_again_when_it_is_closed(broker, channel):
    connection = connection_of(broker)

    def pause_and_close() -> None:
        connection.flow.pause(PauseReason.ALARM)
        connection.close("closed by an operator")

    broker.call(pause_and_close)
    channel.client.expect_close(320)


def test_closed_connection_does_not_delay_the_stop_of_the_broker(broker, channel):
    connection = connection_of(broker)
    channel.client.send(0, Connection.Close(200, "", 0, 0))
    channel.client.expect(Connection.CloseOk)
    broker.call(lambda: connection.close("broker is shutting down"))
    channel.client.expect_end()


def test_what_a_client_sends_after_close_ok_is_not_kept(broker, channel):
    connection = connection_of(broker)
    channel.client.send(0, Connection.Close(200, "", 0, 0))
    channel.client.expect(Connection.CloseOk)
    head = wire.content_header(1, 100_000)
    channel.client.send_bytes(wire.publish(1, "", "q") + head + wire.body(1, bytes(100_000)))
    channel.client.send_bytes(wire.publish(1, "", "q") + head)
    wait_until(lambda: broker.call(lambda: connection.received) > 100_000)
    assert broker.call(lambda: connection.pending_bytes) == 0


def test_input_after_a_heartbeat_timeout_is_ignored(broker, channel, caplog):
    connection = connection_of(broker)
    head = wire.encode(1, ContentHeader(0, 1, Basic.Properties()))
    publish = wire.publish(1, "", "q") + head + wire.body(1, b"x")

    def time_out() -> None:
        connection.heartbeat = 10
        connection.check_heartbeat(connection.flow.last_received + 26)
        connection.flow.receive(publish)

    broker.call(time_out)
    channel.client.expect_end()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_connections_have_few_enough_attributes_to_share_their_keys(broker, channel):
    """With 30 attributes CPython gives each object its own key table, which takes 1.3 KB more."""
    connection = connection_of(broker)
    for instance in (connection, connection.wire, connection.channels[1]):
        assert len(getattr(instance, "__dict__", ())) < 30  # none if it is compiled
    assert channel.number == 1


def test_error_while_closing_is_logged_and_the_other_steps_run(
    broker, channel, monkeypatch, caplog
):
    inner = broker.running.broker
    vhost = inner.vhosts["/"]
    channel.declare("work")
    channel.declare("broken")
    for _ in range(3):
        channel.publish("", "work", b"job")
    channel.wait_ready("work", 3)

    def fail(*args: object, **named: object) -> None:
        raise RecursionError("error of the test")

    broken, remove_consumer = vhost.queues["broken"], vhost.remove_consumer
    monkeypatch.setattr(
        vhost,
        "remove_consumer",
        lambda queue, consumer: (fail if queue is broken else remove_consumer)(queue, consumer),
    )
    with RawClient(*broker.amqp_address) as client:
        own = client.handshake("/").channel()
        failing = own.declare("", exclusive=True).queue
        other = own.declare("", exclusive=True).queue
        monkeypatch.setattr(vhost.queues[failing].backlog, "clear", fail)  # while it is closed
        second = client.channel(2)
        own.consume("broken")
        own.consume("broken")
        own.consume("work")
        own.deliveries(3)
        second.consume("work")
    channel.wait_ready("work", 3)
    wait_until(lambda: broker.call(lambda: len(inner.connections)) <= 1)
    assert not broker.call(lambda: vhost.queues["work"].consumers)
    assert failing not in vhost.queues
    assert other not in vhost.queues
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2  # one for both consumers of the channel, and one for the connection
    assert all("unexpected error while closing" in error for error in errors)
