"""The wire: every case at once, byte by byte, and followed by other bytes."""

import struct
import tracemalloc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.amqp_server.codec import HEARTBEAT_FRAME, PROTOCOL_HEADER, commands, encode_ack
from leveret.amqp_server.wire import (
    MESSAGES_AT_ONCE,
    METHODS_AT_ONCE,
    BadProtocolHeader,
    ConnectionEvent,
    ConnectionState,
    Wire,
)
from leveret.model.errors import BrokerError, ProtocolError, ReplyCode
from leveret.model.message import encode_properties
from tests.unit.amqp_server.recorder import (
    Recorder,
    finish_handshake,
    method_frame,
    open_wire,
    publish_frames,
)

CASES = {
    "empty body": publish_frames(1, "x", "k"),
    "one body frame": publish_frames(1, "x", "k", body=b"hello"),
    "body in pieces": publish_frames(1, "x", "k", body=b"abcdefgh" * 40, frame_max=64),
    "properties": publish_frames(1, "", "q", b"\x10\x00\x02", b"persistent"),
    "ack": encode_ack(1, 7, True),
    "acks in a run": b"".join(encode_ack(1, tag, tag == 4) for tag in range(1, 8)),
    "acks of two channels": encode_ack(1, 1, False) + encode_ack(2, 1, False),
    "publishes in a run": b"".join(
        publish_frames(1, "x", "k", properties, body)
        for properties, body in (
            (b"\x00\x00", b"one"),
            (b"\x80\x00\x01t", b""),
            (b"\x00\x00", b"three"),
        )
    )
    + publish_frames(1, "x", "other", body=b"four")
    + publish_frames(2, "x", "other", body=b"five")
    + publish_frames(1, "x", "k", body=b"six" * 40, frame_max=64)
    + publish_frames(1, "x", "k", body=b"seven"),
    "declare": method_frame(1, commands.Queue.Declare(queue="q", arguments={"x-max-length": 5})),
    "heartbeat": HEARTBEAT_FRAME,
    "two channels interleaved": (
        publish_frames(1, "x", "a", body=b"1" * 10)[:-18]
        + publish_frames(2, "x", "b", body=b"2" * 10)
        + publish_frames(1, "x", "a", body=b"1" * 10)[-18:]
    ),
}


def calls_for(*pieces):
    wire, sink = open_wire(1, 2)
    for piece in pieces:
        wire.receive(piece)
    return sink.calls, wire.buffered


def test_body_in_single_byte_frames_needs_little_more_memory_than_its_size():
    wire, sink = open_wire(1, 2)
    body = bytes(20_000)
    data = publish_frames(1, "x", "k", body=body, frame_max=9)
    messages = []
    sink.on_publish = lambda channel, publish, run: messages.extend(run)
    tracemalloc.start()
    for start in range(0, len(data) - 9, 900):
        wire.receive(data[start : min(start + 900, len(data) - 9)])
    unfinished, _ = tracemalloc.get_traced_memory()
    wire.receive(data[-9:])
    tracemalloc.stop()
    assert unfinished < 3 * len(body)
    [message] = messages
    assert message.body == body and len(message.frames) < len(body) + 100
    wire.receive(publish_frames(1, "x", "k", body=b"next", frame_max=9))
    assert messages[1].body == b"next"


@pytest.mark.parametrize("name", CASES)
def test_calls_do_not_depend_on_how_the_bytes_are_split(name):
    data = CASES[name]
    whole = calls_for(data)
    assert calls_for(*(data[i : i + 1] for i in range(len(data)))) == whole
    assert whole[1] == 0
    for cut in range(1, len(data)):
        assert calls_for(data[:cut], data[cut:]) == whole


@pytest.mark.parametrize("name", CASES)
def test_partial_bytes_are_counted_until_the_frame_or_message_is_complete(name):
    wire, _ = open_wire(1, 2)
    largest = 0
    for byte in CASES[name]:
        wire.receive(bytes([byte]))
        content = [len(part.header) + len(part.body) for part in wire.channels.values()]
        assert wire.partial_bytes == wire.buffered + sum(content)
        largest = max(largest, wire.partial_bytes)
    assert largest > 0 and wire.partial_bytes == 0


@pytest.mark.parametrize("drop", [Wire.drop_contents, lambda wire: wire.begin_channel_close(1)])
def test_partial_messages_are_dropped_when_the_channel_or_connection_closes(drop):
    wire, _ = open_wire(1, 2)
    wire.receive(publish_frames(1, "x", "k", body=bytes(1000), frame_max=508)[:-8])
    assert wire.partial_bytes > 1000
    drop(wire)
    assert wire.partial_bytes == wire.buffered < 508


def test_closed_channel_is_freed_before_the_peer_answers():
    """A peer that never answers could otherwise make the broker keep 65,535 channels."""
    wire, sink = open_wire(1)
    channel = weakref.ref(wire.channels[1].sink)
    wire.begin_channel_close(1)
    assert channel() is None
    wire.receive(publish_frames(1, "x", "k") + method_frame(1, commands.Basic.Ack(1)))
    assert sink.calls == []


@pytest.mark.parametrize("name", CASES)
def test_frames_are_handed_over_with_their_last_byte_and_trailing_bytes_wait(name):
    data = CASES[name]
    calls, _ = calls_for(data)
    early, _ = calls_for(data[:-1])
    assert len(early) < len(calls) or name == "heartbeat"
    followed, left = calls_for(data + HEARTBEAT_FRAME[:5])
    assert (followed, left) == (calls, 5)


def test_publish_carries_address_properties_and_body():
    calls, _ = calls_for(CASES["properties"])
    assert calls == [("publish", 1, "", "q", False, b"\x10\x00\x02", b"persistent")]


def test_consecutive_publishes_and_acks_come_in_one_call():
    wire, sink = open_wire(1, 2)
    wire.receive(CASES["publishes in a run"])
    assert sink.runs == [1, 2, 1, 1, 1, 1]  # the first alone, because its effort is not known
    sink.runs.clear()
    wire.receive(CASES["publishes in a run"])
    assert sink.runs == [3, 1, 1, 1, 1]
    sink.runs.clear()
    wire.receive(CASES["acks in a run"] + CASES["acks of two channels"])
    assert sink.runs == [3, 1, 4, 1]


def test_a_run_is_persistent_or_transient_as_a_whole():
    transient, persistent = b"\x00\x00", b"\x10\x00\x02"
    properties = [transient, transient, persistent, persistent, persistent, transient]
    wire, sink = open_wire()
    wire.receive(publish_frames(1, "x", "k"))
    wire.receive(b"".join(publish_frames(1, "x", "k", each, b"body") for each in properties))
    assert sink.runs == [1, 2, 3, 1]
    assert [call[5] for call in sink.calls[1:]] == properties


def test_one_receive_handles_a_limited_number_of_methods():
    wire, sink = open_wire()
    qos = [method_frame(1, commands.Basic.Qos(prefetch_count=n)) for n in range(250)]
    ack, publish = encode_ack(1, 7, False), publish_frames(1, "x", "known", body=b"b")
    wire.receive(publish)
    wire.receive(b"".join(frame + ack + publish for frame in qos) + publish[:-1])
    portions = [len(sink.calls) - 1]
    while wire.has_more:
        assert 0 < portions[-1] <= 3 * METHODS_AT_ONCE and wire.partial_bytes == 0
        wire.receive(b"")
        portions.append(len(sink.calls) - 1 - sum(portions))
    assert sum(portions) == 750 and len(portions) > 750 / (3 * METHODS_AT_ONCE)
    assert [call[3]["prefetch_count"] for call in sink.calls if call[0] == "method"] == [
        *range(250)
    ]
    assert 0 < wire.buffered < wire.partial_bytes < len(publish)


def test_publishes_to_new_addresses_count_as_methods():
    wire, sink = open_wire()
    wire.receive(b"".join(publish_frames(1, "x", str(number)) for number in range(150)))
    assert 0 < len(sink.calls) <= METHODS_AT_ONCE
    while wire.has_more:
        wire.receive(publish_frames(1, "x", "150") if len(sink.calls) < METHODS_AT_ONCE else b"")
    assert [call[3] for call in sink.calls] == [str(number) for number in range(151)]
    assert wire.partial_bytes == 0


@pytest.mark.parametrize(
    ("frames", "limit"),
    [
        (publish_frames(1, "x", "k", body=b"b"), MESSAGES_AT_ONCE + 1),
        (publish_frames(1, "x", "k") + publish_frames(2, "x", "k"), MESSAGES_AT_ONCE + 1),
        (encode_ack(1, 7, False), 4 * MESSAGES_AT_ONCE + 1),
        (encode_ack(1, 7, True), MESSAGES_AT_ONCE),
    ],
    ids=["run of messages", "messages of two channels", "run of acks", "acks of many"],
)
def test_one_receive_handles_a_limited_number_of_messages_and_acks(frames, limit):
    wire, sink = open_wire(1, 2)
    wire.receive(frames)
    each = len(sink.calls)
    wire.receive(frames * 5 * limit + frames[:-1])
    portions = [len(sink.calls) - each]
    while wire.has_more:
        wire.receive(b"")
        portions.append(len(sink.calls) - each - sum(portions))
    assert len(portions) >= 5 and all(0 < portion <= limit for portion in portions[:-1])
    assert sum(portions) == each * 5 * limit + each - 1
    wire.receive(frames[-1:])
    assert len(sink.calls) == each * (5 * limit + 2)


def test_messages_with_high_effort_use_more_of_the_limit():
    wire, sink = open_wire()
    sink.effort = MESSAGES_AT_ONCE // 4
    publish = publish_frames(1, "x", "k", body=b"b")
    wire.receive(publish * 100)
    assert 0 < len(sink.calls) <= 6 and wire.has_more
    while wire.has_more:
        wire.receive(b"")
    assert len(sink.calls) == 100 and max(sink.runs) <= 5


def test_message_that_needs_validation_comes_alone():
    wire, sink = open_wire()
    plain = publish_frames(1, "x", "k", body=b"b")
    careful = publish_frames(1, "x", "k", encode_properties({"expiration": "1"}), b"b")
    wire.receive(plain)
    wire.receive(plain * 3 + careful * 2 + plain * 2)
    assert sink.runs == [1, 3, 1, 1, 2]


def test_stop_after_this_frame_leaves_the_rest_to_the_next_receive(monkeypatch):
    wire, sink = open_wire()
    publish = publish_frames(1, "x", "k", encode_properties({"expiration": "1"}), b"b")
    hand_over = sink.on_publish

    def take_long(*run):
        hand_over(*run)
        wire.stop_after_this_frame()

    monkeypatch.setattr(sink, "on_publish", take_long)
    wire.receive(publish * 3)
    assert len(sink.calls) == 1 and wire.has_more
    wire.receive(b"")
    wire.receive(b"")
    assert len(sink.calls) == 3 and not wire.has_more


def test_single_byte_body_frames_count_against_the_limit():
    wire, sink = open_wire()
    count = 5 * MESSAGES_AT_ONCE
    head = publish_frames(1, "x", "k", body=bytes(count))[: -count - 8]
    wire.receive(head + b"".join(struct.pack(">BHIBB", 3, 1, 1, 65, 0xCE) for _ in range(count)))
    portions = 1
    while wire.has_more:
        assert not sink.calls
        wire.receive(b"")
        portions += 1
    assert portions >= 5 and [call[-1] for call in sink.calls] == [b"A" * count]


def test_buffered_bytes_are_parsed_with_the_next_receive():
    wire, sink = open_wire()
    publish = publish_frames(1, "x", "k", body=b"b")
    wire.receive(publish[:3])
    wire.buffer(publish[3:] + publish)
    assert wire.has_more and not sink.calls
    wire.buffer(publish[:7])
    wire.receive(publish[7:])
    assert len(sink.calls) == 3 and not wire.has_more and not wire.buffered


def test_ignored_frames_do_not_count_against_the_limit():
    wire, sink = open_wire()
    wire.advance(ConnectionEvent.CLOSE_SENT)
    qos, close = commands.Basic.Qos(prefetch_count=1), commands.Connection.CloseOk()
    illegal = method_frame(0, commands.Connection.OpenOk()) + method_frame(7, close)
    wire.receive((method_frame(1, qos) + illegal) * 1000 + method_frame(0, close))
    assert [call[2] for call in sink.calls] == ["Connection.CloseOk"] and not wire.has_more


def test_message_that_is_too_large_is_refused_after_the_ones_before_it():
    wire, sink = open_wire(1, max_message_size=5)
    small = publish_frames(1, "x", "k", body=b"small")
    large = publish_frames(1, "x", "k", body=b"too large")
    wire.receive(small + small + large[: -len(b"too large") - 8])
    assert [call[0] for call in sink.calls] == ["publish", "publish", "refused"]


def test_messages_before_a_malformed_one_are_handed_over():
    wire, sink = open_wire(1)
    good = publish_frames(1, "x", "k", body=b"good")
    bad = publish_frames(1, "x", "k", b"\x00\x01", b"bad")
    with pytest.raises(ProtocolError):
        wire.receive(good + good + bad)
    assert [call[-1] for call in sink.calls] == [b"good", b"good"]


def test_connection_state_changes_only_as_the_table_allows():
    wire = Wire(Recorder(), 1024)
    for event in set(ConnectionEvent) - {ConnectionEvent.PROTOCOL_HEADER, ConnectionEvent.CLOSED}:
        with pytest.raises(RuntimeError, match=f"{event.name} is not possible in state AWAIT_HEAD"):
            wire.advance(event)
    finish_handshake(wire, 4096)
    assert (wire.state, wire.frame_limit) == (ConnectionState.OPEN, 4096)
    wire.advance(ConnectionEvent.CLOSE_SENT)
    with pytest.raises(RuntimeError, match="CLOSE_SENT is not possible in state CLOSING"):
        wire.advance(ConnectionEvent.CLOSE_SENT)
    for _ in range(2):
        wire.advance(ConnectionEvent.CLOSED)
    assert wire.state is ConnectionState.CLOSED


def test_ignored_input_is_dropped_with_the_buffered_bytes():
    wire, sink = open_wire()
    publish = publish_frames(1, "x", "k", body=b"b")
    wire.buffer(publish)
    wire.ignore_input()
    wire.buffer(publish)
    wire.receive(publish)
    assert not sink.calls and not wire.has_more and not wire.buffered


def test_handshake_header_then_start_ok():
    wire, states = Wire(Recorder(), 1024), []
    for piece in (PROTOCOL_HEADER[:3], PROTOCOL_HEADER[3:]):
        wire.receive(piece)
        states.append(wire.state)
    assert states == [ConnectionState.AWAIT_HEADER, ConnectionState.AWAIT_START_OK]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"AMQP\x00\x01\x00\x00", b"X"])
def test_foreign_header_is_refused(data):
    with pytest.raises(BadProtocolHeader):
        Wire(Recorder(), 1024).receive(data)


def frame(kind, channel, payload, end=b"\xce"):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


header_payload = struct.pack(">HHQH", 60, 0, 3, 0)
BAD = {
    "wrong frame end": (frame(8, 0, b"", b"\x00"), ReplyCode.FRAME_ERROR),
    "unknown frame type": (frame(9, 0, b""), ReplyCode.FRAME_ERROR),
    "method too short": (frame(1, 1, b"\x00\x3c"), ReplyCode.FRAME_ERROR),
    "frame over the limit": (struct.pack(">BHI", 1, 1, 1 << 31) + b"\x00", ReplyCode.FRAME_ERROR),
    "header out of turn": (frame(2, 1, header_payload), ReplyCode.UNEXPECTED_FRAME),
    "body out of turn": (frame(3, 1, b"x"), ReplyCode.UNEXPECTED_FRAME),
    "content on channel 0": (frame(2, 0, header_payload), ReplyCode.UNEXPECTED_FRAME),
    "heartbeat on a channel": (frame(8, 1, b""), ReplyCode.UNEXPECTED_FRAME),
    "heartbeat with payload": (frame(8, 0, b"x"), ReplyCode.FRAME_ERROR),
    "channel not open": (encode_ack(9, 1, False), ReplyCode.CHANNEL_ERROR),
    "unknown method": (frame(1, 1, struct.pack(">HH", 60, 200)), ReplyCode.COMMAND_INVALID),
    "server-only method": (
        method_frame(1, commands.Basic.ConsumeOk("x")),
        ReplyCode.COMMAND_INVALID,
    ),
    "table beyond its frame": (
        frame(1, 1, struct.pack(">HHHB", 50, 10, 0, 0) + b"\x00" + b"\x00\x00\xff\xff"),
        ReplyCode.FRAME_ERROR,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_protocol_violations_are_refused_with_their_reply_code(name):
    data, code = BAD[name]
    wire, _ = open_wire(1)
    with pytest.raises(ProtocolError) as refused:
        wire.receive(data + HEARTBEAT_FRAME)
    assert refused.value.code is code


def test_deep_table_is_refused_without_recursion():
    table = b""
    for _ in range(5000):
        inner = b"\x01aF" + struct.pack(">I", len(table)) + table
        table = inner
    payload = struct.pack(">HHHB", 50, 10, 0, 1) + b"q" + b"\x00"
    wire, _ = open_wire(1, frame_max=1 << 20)
    with pytest.raises(ProtocolError, match="nested deeper"):
        wire.receive(frame(1, 1, payload + struct.pack(">I", len(table)) + table))


def test_oversized_message_is_refused_at_its_header_and_its_body_ignored():
    wire, sink = open_wire(1, max_message_size=100)
    publish = publish_frames(1, "x", "k", body=b"z" * 200)
    wire.receive(publish[:60])
    assert ("refused", 1, 406) in sink.calls or not sink.calls
    wire, sink = open_wire(1, max_message_size=100)
    with pytest.raises(ProtocolError):  # the channel is not closed here, so the body is unexpected
        wire.receive(publish)
    assert sink.calls == [("refused", 1, 406)]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_random_bytes_raise_only_broker_errors(data):
    wire, _ = open_wire(1, 2)
    try:
        wire.receive(data)
    except BrokerError as error:
        assert error.reply_text


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(CASES)),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_mutated_traffic_raises_only_broker_errors(name, changes):
    data = bytearray(CASES[name] + CASES["declare"])
    for place, value in changes:
        data[place % len(data)] = value
    wire, _ = open_wire(1, 2)
    try:
        wire.receive(bytes(data))
    except BrokerError as error:
        assert error.reply_text
