"""A moved message keeps the bytes of its properties, without what the source has added."""

from __future__ import annotations

import pytest

from leveret.model.message import encode_properties, headers_of
from leveret.move.amqp_client import AmqpUrl, Delivery
from leveret.move.mover import Earlier, Moved, MoveError, exchange_for, to_publish
from leveret.move.state import InFlight, MoveState, StateInUse, Step, Totals

# Types that client libraries do not keep: `l` for a small number, `f`, `x`, `D`, `s`, `V`.
ODD_FIELDS = (
    b"\x01al\x00\x00\x00\x00\x00\x00\x00\x07"
    b"\x01bf\x3f\xc0\x00\x00"
    b"\x01cx\x00\x00\x00\x02\xff\x00"
    b"\x01dD\x02\x00\x00\x00\x7b"
    b"\x01es\x00\x09"
    b"\x01fV"
)
OFFSET = b"\x0fx-stream-offsetl\x00\x00\x00\x00\x00\x00\x00\x2a"
COUNT = b"\x10x-delivery-countI\x00\x00\x00\x01"


def properties_with(fields: bytes | None) -> bytes:
    """A content type, these headers and a delivery mode."""
    if fields is None:
        return b"\x90\x00\x04text\x02"
    return b"\xb0\x00\x04text" + len(fields).to_bytes(4, "big") + fields + b"\x02"


def moved(
    properties: bytes,
    *,
    redelivered: bool = False,
    body: bytes = b"body",
    queue: str = "q",
    product: str = "RabbitMQ",
) -> Moved:
    delivery = Delivery(1, redelivered, "ex", "key", properties, body)
    return to_publish(delivery, queue, product)


@pytest.mark.parametrize("fields", [None, b"", ODD_FIELDS])
def test_properties_are_copied_byte_for_byte(fields):
    assert moved(properties_with(fields)).properties == properties_with(fields)


@pytest.mark.parametrize("added", [OFFSET, COUNT, OFFSET + COUNT])
def test_headers_that_the_source_added_are_removed(added):
    assert moved(properties_with(ODD_FIELDS + added)).properties == properties_with(ODD_FIELDS)
    assert moved(properties_with(added + ODD_FIELDS)).properties == properties_with(ODD_FIELDS)
    assert moved(properties_with(added)).properties == properties_with(None)


def test_digest_ignores_what_the_source_added_but_nothing_else():
    plain = moved(properties_with(ODD_FIELDS))
    assert moved(properties_with(ODD_FIELDS + COUNT)).digest == plain.digest
    assert moved(properties_with(ODD_FIELDS), body=b"other").digest != plain.digest
    assert moved(properties_with(None)).digest != plain.digest


def test_digest_ignores_the_order_of_headers():
    """RabbitMQ sorts them when it adds one, also in nested tables."""
    one, two = b"\x01aI\x00\x00\x00\x01", b"\x01bI\x00\x00\x00\x02"
    nested = [b"\x01cF" + len(part).to_bytes(4, "big") + part for part in (one + two, two + one)]
    first, second = moved(properties_with(one + nested[0])), moved(properties_with(nested[1] + one))
    assert first.properties != second.properties
    assert first.digest == second.digest


def test_offset_identifies_a_record():
    record = moved(properties_with(OFFSET))
    assert (record.offset, record.key) == (42, "@42")


PARTITION_1 = encode_properties({"headers": {"x-partition": 1, "x-stream-offset": 3}})


def test_partition_of_a_log_loses_the_header_that_leveret_added():
    message = moved(PARTITION_1, queue="log-1", product="Leveret")
    assert (message.properties, message.offset) == (b"\x00\x00", 3)


def test_partitioned_log_is_refused():
    with pytest.raises(MoveError, match="move the queues of its partitions"):
        moved(PARTITION_1, queue="log", product="Leveret")


def test_own_partition_header_is_kept():
    headers = encode_properties({"headers": {"x-partition": 1}})
    assert moved(headers, product="Leveret").properties == headers
    assert headers_of(moved(PARTITION_1).properties) == {"x-partition": 1}


def test_name_of_the_temporary_exchange_fits():
    assert exchange_for("orders") == "leveret.move.orders"
    assert len(exchange_for("ü" * 127).encode()) <= 255
    assert exchange_for("ü" * 127) != exchange_for("ö" * 127)


# What a killed run left ---------------------------------------------------------------------------

ONE = moved(properties_with(None), redelivered=True, body=b"1")
TWO = moved(properties_with(None), redelivered=True, body=b"2")


def rows(*steps: tuple[Moved, Step], redelivered: bool = False) -> list[InFlight]:
    return [InFlight(message.key, step, redelivered) for message, step in steps]


def test_confirmed_message_is_recognised_once():
    earlier = Earlier.of(rows((ONE, Step.CONFIRMED), (TWO, Step.CONFIRMED)))
    assert earlier.take_confirmed(ONE)
    assert not earlier.take_confirmed(ONE)
    assert not earlier.was_published(ONE)


def test_message_delivered_for_the_first_time_is_another_one():
    earlier = Earlier.of(rows((ONE, Step.CONFIRMED)))
    assert not earlier.take_confirmed(moved(properties_with(None), body=b"1"))


def test_published_message_is_a_possible_duplicate():
    earlier = Earlier.of(rows((ONE, Step.PUBLISHED)))
    assert not earlier.take_confirmed(ONE)
    assert earlier.was_published(ONE)
    assert not earlier.was_published(ONE)


@pytest.mark.parametrize(
    "ambiguous",
    [
        rows((ONE, Step.CONFIRMED), (ONE, Step.CONFIRMED)),
        rows((ONE, Step.CONFIRMED), redelivered=True),
    ],
)
def test_when_in_doubt_a_message_is_published_again(ambiguous):
    earlier = Earlier.of(ambiguous)
    assert not earlier.take_confirmed(ONE)
    assert earlier.was_published(ONE)


def test_equal_message_behind_those_of_the_killed_run_is_another_one():
    earlier = Earlier.of(rows((ONE, Step.CONFIRMED)))
    assert not earlier.take_confirmed(TWO)  # so the ack had reached the source
    assert not earlier.take_confirmed(ONE)


# Addresses and state ------------------------------------------------------------------------------


def test_parts_of_a_url():
    url = AmqpUrl.parse("amqps://ad%40a:p%2Fw@[::1]:1234/my%2Fhost")
    assert (url.host, url.port, url.user, url.password) == ("::1", 1234, "ad@a", "p/w")
    assert (url.vhost, url.is_tls) == ("my/host", True)
    assert str(url) == "amqps://[::1]:1234 vhost 'my/host'"
    assert AmqpUrl.parse("amqp://localhost") == AmqpUrl.parse("amqp://guest:guest@localhost:5672/")


@pytest.mark.parametrize("text", ["localhost", "http://localhost", "amqp://", "amqp://h:x/"])
def test_other_urls_are_refused(text):
    with pytest.raises(ValueError):
        AmqpUrl.parse(text)


def test_state_survives_and_is_separate_for_each_route(tmp_path):
    totals = Totals(3, 10, (1 << 128) - 1, 1, 2, 7).plus([5], [2])
    assert (totals.messages, totals.bytes, totals.checksum) == (4, 15, 1)
    state = MoveState(tmp_path / "s.db", "a -> b")
    state.save("q", totals, [InFlight("k", Step.CONFIRMED, True)])
    state.close()
    state = MoveState(tmp_path / "s.db", "a -> b")
    assert (state.totals("q"), state.totals("other")) == (totals, Totals())
    assert state.in_flight("q") == [InFlight("k", Step.CONFIRMED, True)]
    state.close()
    other = MoveState(tmp_path / "s.db", "b -> a")
    assert (other.totals("q"), other.in_flight("q")) == (Totals(), [])
    other.close()


def test_state_file_has_one_user(tmp_path):
    state = MoveState(tmp_path / "s.db", "a -> b")
    with pytest.raises(StateInUse, match="locked"):
        MoveState(tmp_path / "s.db", "a -> b")
    state.close()
    (tmp_path / "text").write_text("This is no database, but long enough to look like one. " * 99)
    with pytest.raises(StateInUse, match="not a database"):
        MoveState(tmp_path / "text", "a -> b")
