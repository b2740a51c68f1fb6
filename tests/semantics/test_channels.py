"""Rows C-39 to C-46: opening, using and closing channels."""

from __future__ import annotations

import struct

import pytest
from pamqp import commands
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue

from tests.support import wire


def missing():
    """A method that always causes a soft error."""
    return Queue.Declare(queue="no-such-queue", passive=True)


def test_c039_method_on_a_channel_never_opened(client):
    client.send(3, Queue.Declare(queue="q"))
    client.expect_close(504, "CHANNEL_ERROR - expected 'channel.open'")


def test_c039_method_on_a_channel_closed_by_the_client(client):
    client.channel().call(Channel.Close(200, "", 0, 0))
    client.send(1, Queue.Declare(queue="q"))
    client.expect_close(504)


def test_c039_method_on_a_channel_closed_by_the_server(client):
    client.channel().refused(missing(), 404)
    client.send(1, Queue.Declare(queue="q"))
    client.expect_close(504)


def test_c040_channel_opened_twice(client):
    client.channel()
    client.send(1, Channel.Open())
    client.expect_close(504, "second 'channel.open' seen")


def test_c041_channel_max_limits_the_count_of_open_channels(connect):
    client = connect(channel_max=4)
    for number in (1, 9, 3, 4):
        client.channel(number)
    client.send(2, Channel.Open())
    client.expect_close(530)


def test_c041_closed_channel_is_not_counted(connect):
    client = connect(channel_max=1)
    for number in (1, 2, 1):
        client.channel(number).call(Channel.Close(200, "", 0, 0))
    client.channel()


def test_c042_closing_channel_ignores_everything_until_close_ok(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.send(missing())
    channel.expect(Channel.Close)
    channel.publish("", queue)
    channel.send(Queue.Declare(queue=queue), Basic.Ack(99))
    channel.expect_silence()
    channel.send(Channel.CloseOk())
    channel.open()
    assert channel.ready(queue) == 0


def test_c042_simultaneous_close_is_answered_and_frees_the_number(client, channel):
    channel.send(missing(), Channel.Close(200, "", 0, 0))
    assert channel.expect(Channel.Close).reply_code == 404
    channel.expect(Channel.CloseOk)
    channel.send(Channel.CloseOk(), Channel.Open())
    channel.expect(Channel.OpenOk)


@pytest.mark.parametrize("repeats", [2, 40])
def test_c042_each_close_behind_a_durable_declare_is_answered(client, channel, names, repeats):
    """The first close waits for the declare, and the others are sent before it is answered."""
    closes = [Channel.Close(200, "", 0, 0)] * repeats
    channel.send(Queue.Declare(queue=names.queue(), durable=True), *closes)
    channel.expect(Queue.DeclareOk)
    channel.expect(Channel.CloseOk)
    client.send(0, Connection.Close(200, "", 0, 0))
    client.expect(Connection.CloseOk)


@pytest.mark.parametrize("first", [Channel.Close(200, "", 0, 0), missing()])
def test_c042_methods_behind_a_deferred_close_do_not_delay_connection_close(
    client, channel, names, first
):
    leftover = [Basic.Qos(prefetch_count=1)] * 60
    close = wire.encode(0, Connection.Close(200, "", 0, 0))
    channel.send(Queue.Declare(queue=names.queue(), durable=True), first, *leftover, close)
    channel.expect(Queue.DeclareOk)
    client.expect(Connection.CloseOk)


def test_c043_soft_error_names_the_method_and_closes_only_its_channel(client, channel, names):
    queue = names.queue()
    other = client.channel(2)
    other.declare(queue)
    other.fill(queue, "ab")
    other.consume(queue, "elsewhere")
    delivery = other.deliver()
    assert other.deliver().body == b"b"
    other.nack(2)
    assert other.deliver().redelivered
    close = channel.refused(missing(), 404)
    assert (close.class_id, close.method_id) == (50, 10)
    other.ack(delivery.tag)
    assert other.declare(queue, passive=True).consumer_count == 1


def test_c043_soft_error_requeues_unacked_messages(client, channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.fill(queue, "abc")
    channel.get_one(queue, no_ack=False)
    channel.get_one(queue, no_ack=False)
    channel.refused(missing(), 404)
    other = client.channel(2)
    other.wait_ready(queue, 3)
    again = [other.get_one(queue) for _ in range(3)]
    assert [(method.body, method.redelivered) for method in again] == [
        (b"a", True),
        (b"b", True),
        (b"c", False),
    ]


def test_c043_soft_error_after_a_durable_declare_names_its_own_method(channel, names):
    queue = names.queue()
    channel.send(Queue.Declare(queue=queue, durable=True))
    channel.publish("no-such-exchange", "k")
    channel.send(Queue.Purge(queue=queue))
    channel.expect(Queue.DeclareOk)
    close = channel.expect_close(404)
    assert (close.class_id, close.method_id) == (60, 40)
    channel.open()
    channel.send(Queue.Declare(queue=queue, durable=True), Basic.Ack(9), Queue.Purge(queue=queue))
    channel.expect(Queue.DeclareOk)
    close = channel.expect_close(406)
    assert (close.class_id, close.method_id) == (60, 80)


def test_c044_flow_on(channel):
    assert channel.call(Channel.Flow(active=True)).active is True


def test_c044_flow_off_is_not_implemented(client, channel):
    channel.send(Channel.Flow(active=False))
    client.expect_close(540, "NOT_IMPLEMENTED")


def test_c045_success_of_a_nowait_method_is_silent(channel, names):
    queue, first, second = names.queue(), names.exchange(), names.exchange()
    channel.send(
        Exchange.Declare(exchange=first, nowait=True),
        Exchange.Declare(exchange=second, exchange_type="fanout", nowait=True),
        Queue.Declare(queue=queue, nowait=True),
        Queue.Bind(queue=queue, exchange=first, routing_key="k", nowait=True),
        Exchange.Bind(destination=first, source=second, routing_key="k", nowait=True),
        commands.Confirm.Select(nowait=True),
        Basic.Consume(queue=queue, consumer_tag="t", no_ack=True, nowait=True),
    )
    channel.publish(second, "k", b"through")
    method = channel.client.next_on(1).decode()
    frames = {type(method)}
    if isinstance(method, Basic.Ack):
        assert channel.deliver().body == b"through"
    else:
        assert isinstance(method, Basic.Deliver)
        channel.client.next_on(1)
        channel.client.next_on(1)
        frames.add(type(channel.expect(Basic.Ack)))
    channel.send(
        Basic.Cancel(consumer_tag="t", nowait=True),
        Queue.Purge(queue=queue, nowait=True),
        Exchange.Unbind(destination=first, source=second, routing_key="k", nowait=True),
        Queue.Delete(queue=queue, nowait=True),
        Exchange.Delete(exchange=first, nowait=True),
    )
    channel.refused(Queue.Declare(queue=queue, passive=True), 404)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (Queue.Declare(queue="no-such-queue", passive=True, nowait=True), 404),
        (Queue.Bind(queue="no-such-queue", exchange="amq.direct", nowait=True), 404),
        (Queue.Purge(queue="no-such-queue", nowait=True), 404),
        (Exchange.Declare(exchange="no-such-exchange", passive=True, nowait=True), 404),
        (Exchange.Delete(exchange="amq.direct", nowait=True), 403),
        (Basic.Consume(queue="no-such-queue", nowait=True), 404),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_c045_error_of_a_nowait_method_closes_the_channel(channel, method, code):
    channel.refused(method, code)


@pytest.mark.parametrize("pad", ["", "x", "xx"])  # truncates at each byte of a character
def test_c046_long_reply_text_is_cut_and_stays_valid(channel, expected, pad):
    channel.send(wire.queue_declare(1, pad + "€" * 80, flags=1))
    payload = channel.client.next_on(1).payload
    assert payload[:6] == struct.pack(">HHH", 20, 40, 404)
    text = payload[7 : 7 + payload[6]]
    assert text.startswith(f"NOT_FOUND - no queue '{pad}€€€".encode())
    assert len(text) > 240
    # RabbitMQ 3.10 truncates also within a character.
    text.decode(errors=expected(leveret="strict", rabbitmq="replace"))
