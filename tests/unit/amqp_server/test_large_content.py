"""Large bodies: received in pieces, written in portions of whole frames."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.amqp_server.unsent_output import UnsentOutput
from leveret.model.message import (
    LARGE_BODY,
    Address,
    LargeBody,
    LargeContent,
    LargeMessage,
    Message,
    content_frames,
)
from tests.unit.amqp_server.recorder import open_wire, publish_frames

ADDRESS = Address.of("", "q")
PROPERTIES = b"\x10\x00\x02"
BODY = random.Random(1).randbytes(2 * LARGE_BODY + 7)


def received(body: bytes, frame_max: int = 131_072, read_size: int = 200_000) -> Message:
    wire, sink = open_wire(1, max_message_size=1 << 24, frame_max=frame_max)
    data = publish_frames(1, "", "q", PROPERTIES, body, frame_max)
    for start in range(0, len(data), read_size):
        wire.receive(data[start : start + read_size])
        while wire.has_more:
            wire.receive(b"")
    assert wire.partial_bytes == 0
    message: Message = sink.published[-1]
    return message


@pytest.mark.parametrize("size", [LARGE_BODY, LARGE_BODY + 1, 2 * LARGE_BODY, len(BODY)])
def test_a_large_body_is_kept_in_pieces(size):
    message = received(BODY[:size])
    is_large = size > LARGE_BODY
    assert isinstance(message, LargeMessage) == is_large
    assert (message.body, message.body_size) == (BODY[:size], size)
    assert message.properties == PROPERTIES
    assert message.content_size >= size
    if message.large_body is not None:
        assert max(map(len, message.large_body.pieces)) <= LARGE_BODY


def test_incomplete_pieces_count_as_partial_bytes():
    wire, _ = open_wire(1, max_message_size=1 << 24)
    data = publish_frames(1, "", "q", PROPERTIES, BODY)
    wire.receive(data[:-5])
    while wire.has_more:
        wire.receive(b"")
    assert wire.partial_bytes > len(BODY) - 131_072
    wire.drop_contents()
    assert wire.partial_bytes < 131_072


@settings(max_examples=50)
@given(
    cuts=st.lists(st.integers(1, len(BODY) - 1), max_size=5, unique=True),
    frame_max=st.sampled_from([4096, 131_072, LARGE_BODY, 4 * LARGE_BODY]),
)
def test_portions_are_the_frames_of_the_message(cuts, frame_max):
    ends = [*sorted(cuts), len(BODY)]
    pieces = [BODY[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    portions = list(LargeContent(3, PROPERTIES, pieces, frame_max))
    assert max(map(len, portions)) < 1.1 * LARGE_BODY
    wire, sink = open_wire(3, max_message_size=1 << 24, frame_max=frame_max)
    wire.receive(publish_frames(3, "", "q")[: -len(content_frames(3, b"\0\0", b"", 4096))])
    for portion in portions:
        wire.receive(portion)
        while wire.has_more:
            wire.receive(b"")
        assert wire.buffered == 0  # whole frames
    assert sink.published[-1].body == BODY


def test_a_large_message_with_other_properties_shares_its_body():
    message = Message.build(ADDRESS, PROPERTIES, BODY)
    copy = message.with_properties(b"\0\0")
    assert copy.large_body is not None and message.large_body is not None
    assert copy.large_body.pieces is message.large_body.pieces
    assert copy.properties == b"\0\0"


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 30])
def test_the_start_of_a_large_body(size):
    pieces = [b"0123456789", b"abcdefghij", b"ABCDEFGHIJ"]
    assert LargeBody(pieces).start(size) == b"".join(pieces)[:size]


def test_output_behind_a_large_message_waits_for_it():
    unsent = UnsentOutput()
    unsent.add([b"a", b"b", LargeContent(1, PROPERTIES, [BODY], 131_072), b"c"])
    unsent.add([b"d"])
    assert unsent.bytes == 4
    portions = []
    while unsent:
        portions.append(unsent.next_portion())
    assert portions[0] == b"ab"
    assert b"".join(portions).endswith(b"\xcecd")
    assert unsent.bytes == 0
    assert unsent.next_portion() == b""
