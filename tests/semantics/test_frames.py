"""Rows C-18 to C-38: frames, content, tables and properties, as bytes on the wire."""

from __future__ import annotations

import random
import struct

import pytest
from pamqp import commands
from pamqp.commands import Basic, Channel, Queue

from tests.support import wire
from tests.support.rawclient import ConnectionEndedError

BASIC_FLAGS = {"content_type": 1 << 15, "headers": 1 << 13, "timestamp": 1 << 6}


def expect_refusal(client, expected, code):
    """Expect a close with this code; RabbitMQ 3.10 resets the connection without a close."""
    if expected(leveret=True, rabbitmq=False):
        client.expect_close(code)
    else:
        with pytest.raises(ConnectionEndedError):
            client.next_frame()


def test_c018_wrong_frame_end(client):
    client.channel()
    client.send_bytes(wire.frame(wire.METHOD, 1, b"\0\x14\0\x28\0\0\0\0", end=b"\xcd"))
    client.expect_close(501)


def test_c019_unknown_frame_type(client):
    client.channel()
    client.send_bytes(wire.frame(9, 1, b"abcd"))
    client.expect_close(501)


def test_c019_method_frame_too_short_to_name_a_method(client):
    client.channel()
    client.send_bytes(wire.frame(wire.METHOD, 1, b"\0\x14\0"))
    client.expect_close(501)


def test_c020_frame_over_the_limit_is_refused_before_its_payload(connect):
    client = connect(frame_max=4096)
    client.channel()
    client.send_bytes(struct.pack(">BHI", wire.BODY, 1, 4097))
    client.expect_close(501)


def test_c020_frame_of_exactly_the_limit_passes(connect, names):
    client = connect(frame_max=4096)
    channel = client.channel()
    queue = names.queue()
    channel.declare(queue)
    channel.send(
        wire.publish(1, "", queue), wire.content_header(1, 4088), wire.body(1, b"x" * 4088)
    )
    assert channel.get_one(queue).body == b"x" * 4088


@pytest.mark.parametrize(
    "frames",
    [
        wire.content_header(1, 0),
        wire.body(1, b"x"),
        wire.publish(1, "", "q") + wire.encode(1, Queue.Declare(queue="q")),
        wire.publish(1, "", "q") + wire.body(1, b"x"),
        wire.publish(1, "", "q") + wire.content_header(1, 0, class_id=50),
        wire.publish(1, "", "q") + wire.content_header(1, 0, weight=1),
        wire.publish(1, "", "q") + wire.content_header(1, 3) + wire.content_header(1, 3),
    ],
    ids=[
        "header first",
        "body first",
        "method inside",
        "body before header",
        "class",
        "weight",
        "header twice",
    ],
)
def test_c021_unexpected_content_frame(client, frames):
    client.channel()
    client.send_bytes(frames)
    client.expect_close(505, "UNEXPECTED_FRAME")


@pytest.mark.parametrize("number", [0, 7, 65535])
@pytest.mark.parametrize("frames", [wire.content_header, wire.body], ids=["header", "body"])
def test_c021_content_on_channel_0_and_on_closed_channels(client, number, frames):
    client.channel()
    client.send_bytes(frames(number, 1 if frames is wire.content_header else b"x"))
    client.expect_close(505)


def test_c022_more_body_than_declared(client, channel, names, expected):
    queue = names.queue()
    channel.declare(queue)
    channel.send(wire.publish(1, "", queue), wire.content_header(1, 3), wire.body(1, b"four"))
    if expected(leveret=True, rabbitmq=False):
        client.expect_close(501)
    else:
        client.expect_silence()


@pytest.mark.parametrize("number", [0, 1, 7], ids=["channel 0", "out of turn", "not open"])
def test_c021_truncated_content_header(client, number):
    client.channel()
    client.send_bytes(wire.frame(wire.HEADER, number, b"\0\x3c\0\0\0\0\0"))
    client.expect_close(501)


def test_c023_absurd_declared_size(client, expected):
    client.channel()
    client.send_bytes(wire.publish(1, "", "q") + wire.content_header(1, (1 << 63) - 1))
    if expected(leveret=True, rabbitmq=False):
        client.expect_close(501)
    else:
        client.expect_silence()


@pytest.mark.parametrize("number", [0, 1, 7], ids=["channel 0", "out of turn", "not open"])
def test_c021_absurd_declared_size_without_a_publish(client, number):
    client.channel()
    client.send_bytes(wire.content_header(number, 1 << 63))
    client.expect_close(505, "UNEXPECTED_FRAME")


@pytest.mark.parametrize(
    "method", [wire.publish(1, "", "a queue"), wire.encode(1, Queue.Declare(queue="q"))]
)
def test_c021_payload_of_a_method_in_a_header_frame(client, method):
    client.channel()
    client.send_bytes(wire.frame(wire.HEADER, 1, method[7:-1]))
    client.expect_close(505, "UNEXPECTED_FRAME")


@pytest.mark.parametrize("number", [0, 1])
def test_c023_absurd_declared_size_before_tune(raw, expected, number):
    client = raw()
    client.start()
    client.send_bytes(wire.content_header(number, 1 << 63))
    expect_refusal(client, expected, 505)


def test_c024_declared_size_over_the_configured_maximum(client, channel, names, expected):
    queue = names.queue()
    channel.declare(queue)
    size = 128 * 1024 * 1024 + 1
    channel.send(wire.publish(1, "", queue), wire.content_header(1, size), wire.body(1, b"x"))
    if expected(leveret=False, rabbitmq=True):
        client.expect_silence()  # RabbitMQ refuses it after its whole body
        return
    close = channel.expect(Channel.Close)
    assert close.reply_code == 406
    assert close.reply_text.startswith("PRECONDITION_FAILED - message size 134217729 is larger")
    assert (close.class_id, close.method_id) == (60, 40)
    channel.send(wire.body(1, b"the rest of it"), wire.body(1, b"is not wanted"))
    channel.send(Channel.CloseOk())
    channel.open()
    assert channel.ready(queue) == 0


@pytest.mark.parametrize(
    "frames",
    [
        wire.method(1, 50, 10, b"\0\0\xffshort"),
        wire.method(1, 50, 10, b"\0"),
        wire.queue_declare(1, "q", arguments=wire.table(size=1000)),
    ],
    ids=["string", "cut off", "table length"],
)
def test_c025_arguments_that_cannot_be_decoded(client, frames):
    client.channel()
    client.send_bytes(frames)
    client.expect_close(501)


@pytest.mark.parametrize(
    "value",
    [wire.typed("S", struct.pack(">I", 99) + b"x"), wire.typed("F", b"\0\0\1\0"), b"l\0", b""],
    ids=["string length", "nested table length", "integer cut off", "no value"],
)
def test_c025_table_value_that_cannot_be_decoded(client, expected, value):
    client.channel()
    client.send_bytes(wire.queue_declare(1, "q", arguments=wire.table(("k", value))))
    expect_refusal(client, expected, 501)


@pytest.mark.parametrize(
    ("class_id", "method_id"), [(99, 10), (50, 99), (60, 9)], ids=["class", "queue", "basic"]
)
def test_c026_unknown_method(client, expected, class_id, method_id):
    client.channel()
    client.send_bytes(wire.method(1, class_id, method_id, b"\0\0"))
    expect_refusal(client, expected, 503)


@pytest.mark.parametrize("kind", ["z", "\x00", "Q"])
def test_c027_unknown_field_type(client, expected, kind):
    client.channel()
    arguments = wire.table(("k", wire.typed(kind, b"\0\0\0\0")))
    client.send_bytes(wire.queue_declare(1, "q", arguments=arguments))
    expect_refusal(client, expected, 501)


def test_c028_short_string_that_is_not_utf8(client):
    client.channel()
    client.send_bytes(wire.queue_declare(1, b"\xff\xfe"))
    client.expect_close(501)


def test_c029_line_breaks_are_stripped_from_names(channel, names):
    queue, exchange = names.queue(), names.exchange()
    broken = queue[:3] + "\r\n" + queue[3:] + "\n"
    channel.send(wire.queue_declare(1, broken))
    assert channel.expect(Queue.DeclareOk).queue == queue
    channel.send(wire.exchange_declare(1, exchange + "\r\n"))
    channel.expect(commands.Exchange.DeclareOk)
    channel.exchange(exchange, passive=True)


def test_c030_longest_name(channel, names):
    queue = (names.queue() + "é" * 200).encode()[:255].decode(errors="ignore").ljust(255, "x")
    queue = queue.encode()[:255].decode(errors="ignore")
    assert len(queue.encode()) == 255
    channel.send(wire.queue_declare(1, queue, flags=0b100))
    assert channel.expect(Queue.DeclareOk).queue == queue
    channel.send(wire.publish(1, "", queue), wire.content_header(1, 2), wire.body(1, b"hi"))
    channel.send(wire.method(1, 60, 70, b"\0\0" + wire.shortstr(queue) + b"\1"))
    message = channel.client.content(Basic.GetOk, 1)
    assert (message.method.routing_key, message.body) == (queue, b"hi")


def test_c030_nul_in_a_name(channel, names, expected):
    queue = names.queue()
    channel.send(wire.queue_declare(1, queue + "\0", flags=0b100))
    if expected(leveret=True, rabbitmq=False):
        channel.expect_close(406)
    else:
        assert channel.expect(Queue.DeclareOk).queue == queue + "\0"


def test_c031_empty_body_has_no_body_frame(client, channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"")
    channel.publish("", queue, b"next")
    empty = channel.deliver()
    assert (empty.body, empty.body_sizes) == (b"", ())
    assert channel.deliver().body == b"next"


def test_c031_an_empty_body_frame_after_an_empty_message(client, channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.send(wire.publish(1, "", queue), wire.content_header(1, 0), wire.body(1, b""))
    client.expect_close(505)


def test_c032_empty_body_frame_inside_a_body(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.send(wire.publish(1, "", queue), wire.content_header(1, 6))
    channel.send(*(wire.body(1, part) for part in (b"", b"abc", b"", b"def")))
    assert channel.get_one(queue).body == b"abcdef"


def test_c033_body_is_split_for_the_receiver(connect, channel, names):
    queue = names.queue()
    channel.declare(queue)
    small = connect(frame_max=4096).channel()
    small.consume(queue, no_ack=True)
    body = random.Random(33).randbytes(10_000)
    channel.publish("", queue, body)
    message = small.deliver()
    assert message.body == body
    assert message.body_sizes == (4088, 4088, 10_000 - 2 * 4088)


def test_c033_small_frames_are_joined_for_the_receiver(connect, channel, names):
    queue = names.queue()
    channel.declare(queue)
    connect(frame_max=4096).channel().publish("", queue, b"x" * 10_000)
    channel.consume(queue, no_ack=True)
    assert channel.deliver().body == b"x" * 10_000


def test_c034_two_channels_interleave_their_content(client, names):
    queue = names.queue()
    one, two = client.channel(1), client.channel(2)
    one.declare(queue)
    client.send_bytes(
        wire.publish(1, "", queue)
        + wire.publish(2, "", queue)
        + wire.content_header(2, 4)
        + wire.content_header(1, 4)
        + wire.body(1, b"on")
        + wire.body(2, b"tw")
        + wire.encode(0, commands.Connection.UpdateSecret("guest", "no reason"))
        + wire.body(1, b"e1")
        + wire.body(2, b"o2")
    )
    client.expect(commands.Connection.UpdateSecretOk)
    two.wait_ready(queue, 2)
    assert sorted(one.drain(queue)) == [b"one1", b"two2"]


def test_c036_duplicate_keys_in_a_table(channel, names):
    queue = names.queue()
    twice = wire.table(("k", wire.typed("t", b"\1")), ("k", wire.typed("t", b"\0")))
    channel.send(wire.queue_declare(1, queue, arguments=twice))
    assert channel.expect(Queue.DeclareOk).queue == queue


INTEGERS = [
    ("b", ">b", -5),
    ("B", ">B", 200),
    ("s", ">h", -300),
    ("u", ">H", 60_000),
    ("I", ">i", -70_000),
    ("i", ">I", 4_000_000_000),
    ("l", ">q", -(1 << 40)),
    ("L", ">q", -(1 << 40)),
]


@pytest.mark.parametrize(("kind", "packing", "value"), INTEGERS, ids=[row[0] for row in INTEGERS])
def test_c037_integer_types_are_accepted(channel, names, kind, packing, value):
    queue, exchange = names.queue(), names.exchange()
    channel.exchange(exchange, "headers")
    channel.declare(queue)
    wanted = wire.table(("n", wire.typed(kind, struct.pack(packing, value))))
    bind = b"\0\0" + wire.shortstr(queue) + wire.shortstr(exchange) + wire.shortstr("") + b"\0"
    channel.send(wire.method(1, 50, 20, bind + wanted))
    channel.expect(Queue.BindOk)
    as_long = wire.table(("n", wire.typed("l", struct.pack(">q", value))))
    header = struct.pack(">H", BASIC_FLAGS["headers"]) + as_long
    channel.send(
        wire.publish(1, exchange, ""), wire.content_header(1, 1, header), wire.body(1, b"x")
    )
    assert channel.get_one(queue).body == b"x"


def test_c037_redeclare_compares_integers_by_value(channel, names):
    queue = names.queue()
    for kind, packing in (("b", ">b"), ("I", ">i"), ("l", ">q"), ("s", ">h")):
        expiry = wire.table(("x-max-length", wire.typed(kind, struct.pack(packing, 100))))
        channel.send(wire.queue_declare(1, queue, arguments=expiry))
        channel.expect(Queue.DeclareOk)


def test_c038_properties_arrive_exactly_as_sent(channel, names):
    queue = names.queue()
    channel.declare(queue)
    # One of each field type, in an order and with widths that no encoder would choose.
    headers = wire.table(
        ("z-first", wire.typed("t", b"\1")),
        ("long", wire.typed("l", struct.pack(">q", 5))),
        ("byte", wire.typed("b", struct.pack(">b", -5))),
        ("ubyte", wire.typed("B", b"\xc8")),
        ("short", wire.typed("s", struct.pack(">h", -2))),
        ("ushort", wire.typed("u", struct.pack(">H", 65535))),
        ("int", wire.typed("I", struct.pack(">i", -1))),
        ("uint", wire.typed("i", struct.pack(">I", 1 << 31))),
        ("float", wire.typed("f", struct.pack(">f", 1.5))),
        ("double", wire.typed("d", struct.pack(">d", 0.1))),
        ("decimal", wire.typed("D", b"\2" + struct.pack(">I", 314))),
        ("bytes", wire.typed("x", wire.longstr(b"\0\xff"))),
        ("string", wire.typed("S", wire.longstr("häse"))),
        ("time", wire.typed("T", struct.pack(">Q", 1_700_000_000))),
        ("void", wire.typed("V")),
        ("array", wire.typed("A", struct.pack(">I", 3) + wire.typed("V") + wire.typed("t", b"\0"))),
        ("table", wire.typed("F", wire.table(("deep", wire.typed("V"))))),
    )
    sent = (
        struct.pack(">H", sum(BASIC_FLAGS.values()))
        + wire.shortstr("text/plain")
        + headers
        + struct.pack(">Q", 1_700_000_001)
    )
    channel.send(wire.publish(1, "", queue), wire.content_header(1, 1, sent), wire.body(1, b"x"))
    channel.send(Basic.Get(queue=queue, no_ack=True))
    message = channel.client.content(Basic.GetOk, 1)
    assert message.header_payload == struct.pack(">HHQ", 60, 0, 1) + sent


def test_c038_every_property(channel, names, broker):
    queue = names.queue()
    channel.declare(queue)
    sent = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "headers": {"a": 1, "b": "two"},
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c-1",
        "reply_to": "somewhere",
        "expiration": "60000",
        "message_id": "m-1",
        "message_type": "kind",
        "user_id": broker.user,
        "app_id": "app",
    }
    channel.publish("", queue, **sent)
    properties = channel.get_one(queue).properties
    assert {name: getattr(properties, name) for name in sent} == sent


def test_c038_no_properties_stay_none(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.publish("", queue)
    assert channel.get_one(queue).header_payload == struct.pack(">HHQ", 60, 0, 1) + b"\0\0"
