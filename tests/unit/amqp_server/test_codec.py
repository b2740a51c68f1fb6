"""Every method that a client may send round-trips through the codec; tables keep their bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import decode

from leveret.amqp_server import codec
from leveret.model import message as props
from leveret.model.errors import ProtocolError
from leveret.model.message import Address, Message
from leveret.model.tables import (
    _DECODERS,
    check_table,
    decode_checked,
    decode_table,
    edit_table,
    encode_table,
)
from tests.unit.amqp_server.recorder import method_frame, open_wire

short = st.text(alphabet="abcxyz.#*/-_", max_size=40)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=30)
    | st.floats(allow_nan=False, width=32)
)
nested = st.lists(scalars, max_size=3) | st.dictionaries(short, scalars, max_size=3)
values = scalars | nested | st.lists(nested, max_size=2)
tables = st.dictionaries(short.filter(bool), values, max_size=5)
WIRE = {
    "short": st.integers(0, 0),
    "shortstr": short,
    "longstr": st.text(max_size=60),
    "bit": st.booleans(),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),
    "octet": st.integers(0, 255),
    "table": tables,
}


@pytest.mark.parametrize("kind", codec._CLIENT_METHODS.values(), ids=lambda kind: kind.name)
@settings(max_examples=15)
@given(data=st.data())
def test_every_client_method_round_trips(kind, data):
    method = codec._CLIENT_METHODS[kind.index].__new__(kind)
    given_values = {}
    for name in kind.__slots__:
        given_values[name] = data.draw(WIRE[kind.amqp_type(name)])
        setattr(method, name, given_values[name])
    method.__class__.validate, validate = (lambda self: None), method.__class__.validate
    try:
        frame = codec.encode_method(3, method)
    finally:
        method.__class__.validate = validate
    decoded, table = codec.decode_method(frame[7:-1])
    assert {name: getattr(decoded, name) for name in kind.__slots__} == given_values
    assert bool(table) == ("table" in {kind.amqp_type(name) for name in kind.__slots__})


@given(tables, st.binary(max_size=9))
def test_checked_tables_decode_to_the_encoded_values(table, rest):
    data = encode_table(table)
    assert check_table(data, 0, len(data)) == len(data)
    assert decode_table(data) == decode_table(data + rest) == table


def outcome_of(call, *arguments):
    try:
        return repr(call(*arguments))
    except (ValueError, ProtocolError, OverflowError, OSError):
        return "refused"


@settings(max_examples=300)
@given(tables, st.integers(0, 400), st.sampled_from(b"tbBsuUIilLfdTDVSxFA\x00\x01\xff"))
def test_every_type_is_decoded_like_pamqp(table, place, value):
    changed = bytearray(encode_table(table))
    changed[place % len(changed)] = value
    data = bytes(changed)
    if outcome_of(check_table, data, 0, len(data)) == str(len(data)):
        of_pamqp = outcome_of(lambda: decode.field_table(data)[1])
        assert outcome_of(decode_checked, data) == of_pamqp


def test_decoding_a_value_does_not_copy_the_rest_of_the_table(monkeypatch):
    """With copies, a table of maximal depth and width took half a second to decode."""
    copied: list[int] = []

    def counted(decoder):
        def decode_and_count(data):
            copied.append(len(data))
            return decoder(data)

        return decode_and_count

    monkeypatch.setattr(
        "leveret.model.tables._DECODERS", {k: counted(d) for k, d in _DECODERS.items()}
    )
    monkeypatch.setitem(decode.METHODS, "table", counted(decode.METHODS["table"]))
    chain = b""
    for _ in range(30):
        chain = b"\x01aF" + len(chain).to_bytes(4, "big") + chain
    fields = chain * 100 + b"\x00V" * 1000 + b"\x01lS\x00\x01\x00\x00" + bytes(65536)
    table = len(fields).to_bytes(4, "big") + fields
    payload = b"\x00\x32\x00\x0a\x00\x00\x01q\x00" + table
    method, raw = codec.decode_method(payload)
    arguments = dict(method)["arguments"]
    assert raw == table and isinstance(arguments, dict) and arguments.keys() == {"a", "", "l"}
    assert 65536 <= sum(copied) < 2 * 65536


@given(tables, st.integers(0, 400), st.integers(0, 255))
def test_damaged_tables_are_refused_or_decoded_without_crash(table, place, value):
    data = bytearray(encode_table(table))
    data[place % len(data)] = value
    try:
        decode_table(bytes(data))
    except ProtocolError as error:
        assert error.reply_text.startswith("FRAME_ERROR")


@given(tables, tables)
def test_editing_a_table_keeps_the_other_fields(table, added):
    removed = frozenset(list(table)[:2])
    edited = decode_table(edit_table(encode_table(table), removed, added))
    assert edited == {k: v for k, v in table.items() if k not in removed} | added


property_values = st.fixed_dictionaries(
    {},
    optional={
        name: {
            "headers": tables,
            "delivery_mode": st.integers(1, 2),
            "priority": st.integers(0, 255),
            "timestamp": st.integers(0, 2**40),
        }.get(name, short)
        for name in props.PROPERTY_NAMES
    },
)


@given(property_values)
def test_properties_round_trip_and_scan_agrees(values):
    wire = props.encode_properties(values)
    assert props.decode_properties(wire) == values
    scanned = props.scan(wire)
    assert scanned.persistent == (values.get("delivery_mode") == 2)
    assert scanned.expiration == values.get("expiration")
    assert scanned.has_headers == ("headers" in values)


@given(property_values, st.sampled_from(["reply_to", "expiration", "message_id"]), short)
def test_replacing_one_property_keeps_the_others(values, name, new):
    wire = props.encode_properties(values)
    assert props.decode_properties(props.replace_property(wire, name, new)) == {**values, name: new}
    without = {key: value for key, value in values.items() if key != name}
    assert props.decode_properties(props.replace_property(wire, name, None)) == without


@given(property_values, tables)
def test_headers_are_added_with_and_without_existing_headers(values, added):
    wire = props.edit_headers(props.encode_properties(values), frozenset(), added)
    expected = {**values.get("headers", {}), **added}
    assert props.headers_of(wire) == expected


@given(st.binary(max_size=500), st.integers(1, 60), st.integers(12, 80))
def test_content_survives_any_frame_size_and_channel(body, channel, frame_max):
    message = Message.build(Address.of("x", "k"), b"\x10\x00\x02", body)
    frames = message.content(channel, frame_max)
    wire, sink = open_wire(channel)
    wire.receive(method_frame(channel, codec.commands.Basic.Publish()) + frames)
    assert sink.calls[0][-2:] == (b"\x10\x00\x02", body)
    assert message.body == body
