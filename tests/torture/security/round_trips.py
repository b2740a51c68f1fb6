"""R-32: every method, property set and field type, encoded and decoded, by hypothesis.

Each target is a property with its own examples; the tests run hundreds of them, `make torture` tens
of thousands. In addition, a few inputs that are as bad as the format allows are measured.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from pamqp import commands, frame

from leveret.amqp_server import codec
from leveret.amqp_server.wire import Wire
from leveret.model import message as props
from leveret.model.errors import ProtocolError
from leveret.model.tables import (
    MAX_DEPTH,
    MAX_FIELDS,
    check_table,
    decode_table,
    edit_table,
    encode_table,
)
from tests.support import wire
from tests.torture.security.decoding import (
    MEGABYTE,
    max_memory,
    nested_arrays,
    nested_tables,
    open_wire,
    peak,
    receive_all,
    receive_buffered,
)
from tests.unit.amqp_server.recorder import Recorder, method_frame, publish_frames
from tests.unit.amqp_server.test_codec import WIRE, property_values, tables

MILLISECONDS, WIDE_MILLISECONDS = 50.0, 20.0

_SIZED = st.binary(max_size=40).map(lambda data: struct.pack(">I", len(data)) + data)
_TEXT = st.text(max_size=20).map(lambda text: struct.pack(">I", len(text.encode())) + text.encode())


def _packed(form: str, lowest: int, highest: int) -> st.SearchStrategy[bytes]:
    return st.integers(lowest, highest).map(lambda value: struct.pack(form, value))


FIELDS: dict[str, st.SearchStrategy[bytes]] = {
    "t": _packed(">B", 0, 1),
    "b": _packed(">b", -128, 127),
    "B": _packed(">B", 0, 255),
    "s": _packed(">h", -(2**15), 2**15 - 1),
    "u": _packed(">H", 0, 2**16 - 1),
    "I": _packed(">i", -(2**31), 2**31 - 1),
    "i": _packed(">I", 0, 2**32 - 1),
    "l": _packed(">q", -(2**63), 2**63 - 1),
    "f": st.floats(width=32, allow_nan=False).map(lambda value: struct.pack(">f", value)),
    "d": st.floats(allow_nan=False).map(lambda value: struct.pack(">d", value)),
    "D": st.tuples(st.integers(0, 255), st.integers(-(2**31), 2**31 - 1)).map(
        lambda parts: struct.pack(">Bi", *parts)
    ),
    "T": _packed(">Q", 0, 2**33),
    "S": _TEXT,
    "x": _SIZED,
    "V": st.just(b""),
}
"""Encoded fields of every type except tables and arrays."""

_KEYS = st.text(alphabet="abcdef-", min_size=1, max_size=12)
_plain = st.one_of(*(values.map(kind.encode().__add__) for kind, values in FIELDS.items()))


def _array(items: list[bytes]) -> bytes:
    joined = b"".join(items)
    return b"A" + struct.pack(">I", len(joined)) + joined


def _nested(fields: dict[str, bytes]) -> bytes:
    return b"F" + wire.table(*fields.items())


_value = st.recursive(
    _plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(_array),
        st.dictionaries(_KEYS, inner, max_size=3).map(_nested),
    ),
    max_leaves=4,
)
wire_fields = st.dictionaries(_KEYS, _value, max_size=4)


def table_of_any_types(fields: dict[str, bytes]) -> None:
    """Validate, decode and list types; edits leave other fields unchanged."""
    data = wire.table(*fields.items())
    assert check_table(data, 0, len(data)) == len(data)
    assert decode_table(data).keys() == fields.keys()
    edited = edit_table(data, frozenset(), {"new": 1})
    assert edited[4:].startswith(b"".join(wire.shortstr(k) + v for k, v in fields.items()))
    assert decode_table(edited).pop("new") == 1


def table_of_values(table: dict[str, Any]) -> None:
    assert decode_table(encode_table(table)) == table


def properties_of_any_kind(values: dict[str, Any]) -> None:
    encoded = props.encode_properties(values)
    assert props.decode_properties(encoded) == values
    assert props.scan(encoded).spans.keys() == values.keys()


def _methods(kinds: list[Any]) -> st.SearchStrategy[Any]:
    """(a method, the values of its arguments)"""
    return st.sampled_from(kinds).flatmap(
        lambda kind: st.tuples(
            st.just(kind),
            st.fixed_dictionaries({name: WIRE[kind.amqp_type(name)] for name in kind.__slots__}),
        )
    )


def make_method(kind: Any, values: dict[str, Any]) -> Any:
    """A method with values that pamqp would refuse to send."""
    lenient = {"__slots__": kind.__slots__, "validate": lambda self: None}
    method: Any = object.__new__(type(kind.__name__, (kind,), lenient))
    for name, value in values.items():
        setattr(method, name, value)
    return method


def _encoded(kind: Any, values: dict[str, Any]) -> bytes:
    return codec.encode_method(3, make_method(kind, values))[7:-1]


def client_method(method: tuple[Any, dict[str, Any]]) -> None:
    kind, values = method
    decoded, _ = codec.decode_method(_encoded(kind, values))
    assert {name: getattr(decoded, name) for name in kind.__slots__} == values


def server_method(method: tuple[Any, dict[str, Any]]) -> None:
    kind, values = method
    decoded: Any = frame.unmarshal(wire.frame(1, 3, _encoded(kind, values)))[2]
    assert type(decoded) is kind
    assert {name: getattr(decoded, name) for name in kind.__slots__} == values


def any_bytes(parts: list[bytes]) -> None:
    """Input in pieces is accepted or refused with a protocol error, the same if it is buffered."""
    data = b"".join(parts)
    part_by_part, waited = (
        open_wire(Wire(Recorder(), MEGABYTE)),
        open_wire(Wire(Recorder(), MEGABYTE)),
    )
    refused = [error for part in parts for error in receive_all(part_by_part, part)]
    assert all(error.reply_text for error in refused)
    assert_same(part_by_part, refused, waited, receive_buffered(waited, parts))
    at_once = open_wire(Wire(Recorder(), MEGABYTE))
    assert_same(part_by_part, refused, at_once, receive_all(at_once, data))


def in_portions(many: tuple[list[bytes], int, int]) -> None:
    """Input larger than a portion is decoded completely and in order, split or buffered."""
    frames, times, cut = many
    data = b"".join(frames) * times
    any_bytes([data[:cut], data[cut : 3 * cut], data[3 * cut :]])


def assert_same(
    first: Wire, refused: list[ProtocolError], second: Wire, also_refused: list[ProtocolError]
) -> None:
    assert [int(error.code) for error in refused] == [int(error.code) for error in also_refused]
    assert _calls(first) == _calls(second)


def _calls(receiver: Wire) -> list[tuple[Any, ...]]:
    assert isinstance(receiver.sink, Recorder) and not receiver.has_more
    calls: list[tuple[Any, ...]] = receiver.sink.calls
    return calls


CLIENT: list[Any] = list(codec._CLIENT_METHODS.values())
_ALL: list[Any] = list(commands.INDEX_MAPPING.values())
SERVER = [kind for kind in _ALL if kind not in CLIENT and kind.__slots__]
_frames = st.builds(
    wire.frame, st.sampled_from((1, 1, 1, 2, 3, 8)), st.integers(0, 2), st.binary(max_size=60)
)
_VALID = (
    codec.HEARTBEAT_FRAME,
    method_frame(1, codec.commands.Basic.Qos(prefetch_count=1)),
    method_frame(1, codec.commands.Basic.Ack(1)),
    method_frame(1, codec.commands.Basic.Ack(2, multiple=True)),
    method_frame(1, codec.commands.Basic.Nack(3)),
    publish_frames(1, "", "q"),
    publish_frames(1, "", "q", body=b"x"),
    publish_frames(1, "e", "other", body=b"long" * 20),
    publish_frames(1, "e", "parts", body=b"y" * 5_000, frame_max=4096),
)
_many = st.tuples(
    st.lists(st.sampled_from(_VALID) | _frames, min_size=1, max_size=4),
    st.integers(1, 500),
    st.integers(0, 3_000),
)
TARGETS: dict[str, tuple[Callable[[Any], None], st.SearchStrategy[Any]]] = {
    "client methods": (client_method, _methods(CLIENT)),
    "server methods": (server_method, _methods(SERVER)),
    "property sets": (properties_of_any_kind, property_values),
    "tables of values": (table_of_values, tables),
    "field types": (table_of_any_types, wire_fields),
    "bytes": (any_bytes, st.lists(_frames | st.binary(max_size=60), max_size=6)),
    "portions": (in_portions, _many),
}


def run_target(name: str, examples: int, number: int) -> None:
    """Run examples of one target; raises with the smallest that fails."""
    check, strategy = TARGETS[name]

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def check_example(example: Any) -> None:
        check(example)

    check_example()


# Worst inputs ----------------------------------------------------------------------------------


def worst_inputs() -> dict[str, bytes]:
    """Tables of 128 KiB: wide, deep, of empty values, and of random bytes; as wide and as deep as
    allowed, followed by a long value, which must not be copied each time."""
    size, source = 128 * 1024, random.Random(32)
    deep = b""
    for _ in range(size // 7):
        deep = b"\x01aF" + struct.pack(">I", len(deep)) + deep
    chain = b""
    for _ in range(MAX_DEPTH - 1):
        chain = b"\x01aF" + struct.pack(">I", len(chain)) + chain
    chains, nothing = chain * (MAX_FIELDS // MAX_DEPTH), b"\x00V" * (MAX_FIELDS - 1)
    return {
        "wide": b"\x01kt\x01" * (size // 4),
        "deep": deep,
        "empty arrays": b"\x00A\x00\x00\x00\x00" * (size // 6),
        "nothing": b"\x00V" * (size // 2),
        "one long string": _long_string(size),
        "as wide as allowed": nothing + _long_string(size - len(nothing)),
        "as deep as allowed": chains + _long_string(size - len(chains)),
        "anything": source.randbytes(size),
    }


def _long_string(size: int) -> bytes:
    return b"\x01kS" + struct.pack(">I", size) + b"x" * size


def measure_worst() -> tuple[dict[str, float], list[str]]:
    """CPU milliseconds of each input, and problems with memory or depth."""
    tables = {name: _table(fields) for name, fields in worst_inputs().items()}
    took = {name: min(_milliseconds(data) for _ in range(3)) for name, data in tables.items()}
    problems = [problem for name in tables if (problem := too_large(name))]
    problems += [problem for name in long_streams() if (problem := stream_too_large(name))]
    return took, problems + wrong_depths()


def wrong_depths() -> list[str]:
    """Problems with the depth limit of tables and arrays: one level more must be refused."""
    problems = []
    for nested in (nested_tables, nested_arrays):
        if not _refuse_or_take(nested(MAX_DEPTH)):
            problems.append(f"{nested.__name__}: {MAX_DEPTH} deep is refused")
        for more in (1, 2, 1_000):
            if _refuse_or_take(nested(MAX_DEPTH + more)):
                problems.append(f"{nested.__name__}: {MAX_DEPTH + more} deep is accepted")
    return problems


def long_streams() -> dict[str, bytes]:
    """Streams of 128 KiB: one kind of frame, tables and properties, random bytes."""
    size, source = 128 * 1024, random.Random(32)
    kinds = {f"frame {number}": data for number, data in enumerate(_VALID)}
    for name, fields in worst_inputs().items():
        table = _table(fields[:60_000])
        kinds[f"declare with {name}"] = wire.frame(1, 1, _DECLARE + table)
        kinds[f"publish with {name}"] = publish_frames(1, "", "q", b"\x20\x00" + table)
    kinds |= {f"bytes {number}": source.randbytes(size) for number in range(10)}
    kinds["other keys"] = b"".join(publish_frames(1, "", f"key-{n}") for n in range(3_000))
    kinds["one body in bytes"] = publish_frames(1, "", "q", body=b"z" * 14_000, frame_max=9)
    return {name: data * max(1, size // len(data)) for name, data in kinds.items()}


_DECLARE = b"\x00\x32\x00\x0a\x00\x00\x01q\x00"


class DroppingSink(Recorder):
    """Reads what the wire decodes and drops it."""

    def on_method(self, channel: int, method: Any, table: bytes) -> None:
        pass

    def on_publish(self, channel: int, publish: Any, messages: Any) -> None:
        publish.effort = 1
        for message in messages:
            message.headers()

    def on_ack(self, channel: int, tags: Any, multiple: bool) -> None:
        pass


def stream_too_large(name: str) -> str:
    data = long_streams()[name]
    peak_bytes = peak(
        lambda stream: receive_all(open_wire(Wire(DroppingSink(), MEGABYTE)), stream), data
    )
    return (
        f"{name}: {peak_bytes} bytes for {len(data)}" if peak_bytes > max_memory(len(data)) else ""
    )


def _table(fields: bytes) -> bytes:
    return struct.pack(">I", len(fields)) + fields


def too_large(name: str) -> str:
    """The problem with the memory of one of the worst inputs, or an empty string."""
    data = _table(worst_inputs()[name])
    peak_bytes = peak(_refuse_or_take, data)
    if name in ("wide", "deep", "nothing") and _refuse_or_take(data):
        return f"{name}: accepted, although it has too many fields or levels"
    return (
        f"{name}: {peak_bytes} bytes for {len(data)}" if peak_bytes > max_memory(len(data)) else ""
    )


def _milliseconds(data: bytes) -> float:
    began = time.thread_time()
    _refuse_or_take(data)
    return (time.thread_time() - began) * 1000


def _refuse_or_take(data: bytes) -> bool:
    try:
        decode_table(data)
    except ProtocolError as error:
        assert error.code == 501, error
        return False
    return True
