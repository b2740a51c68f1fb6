"""Field tables: checked first, then decoded and encoded by pamqp, value by value.

pamqp trusts lengths, so every table from a client passes `check_table` first: it is iterative,
limits depth and number of fields, and allocates nothing for bytes that have not arrived. pamqp also
copies the rest of a table for each of its values; here it is given one value at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from pamqp import decode, encode

from leveret.model.errors import ProtocolError

MAX_DEPTH = 32
MAX_FIELDS = 4096
MAX_ARGUMENTS = 128 * 1024
"""Bytes of an encoded table that did not arrive over AMQP: what fits in a frame of default size."""
_EDITED_DEPTH = 48
_EDITED_FIELDS = 1 << 30

Table = dict[str, Any]

_FIXED_WIDTH = {
    ord("t"): 1, ord("b"): 1, ord("B"): 1, ord("s"): 2, ord("u"): 2, ord("U"): 2,
    ord("I"): 4, ord("i"): 4, ord("f"): 4, ord("l"): 8, ord("L"): 8, ord("d"): 8,
    ord("T"): 8, ord("D"): 5, ord("V"): 0,
}  # fmt: skip
_BYTES_TYPES = frozenset(b"Sx")
_TABLE, _ARRAY, _TIMESTAMP = b"FAT"
_DECODERS = {name[0]: decoder for name, decoder in decode.TABLE_MAPPING.items()}
_TYPE_NAMES = {
    "t": "bool", "b": "byte", "B": "unsignedbyte", "s": "short", "u": "unsignedshort",
    "U": "short", "I": "signedint", "i": "unsignedint", "l": "long", "L": "long",
    "f": "float", "d": "double", "S": "longstr", "x": "binary", "T": "timestamp",
    "D": "decimal", "V": "void", "F": "table", "A": "array",
}  # fmt: skip
_LENGTH = struct.Struct(">I")
_DOUBLE = struct.Struct(">d")
_LONG = struct.Struct(">q")


def check_table(data: bytes, start: int, limit: int, edited: bool = False) -> int:
    """Verify the table at `start` and return where it ends; nothing is decoded.

    `edited`: the broker has added fields, so the table may be larger than a client's.
    """
    if edited:
        max_fields, max_depth = _EDITED_FIELDS, _EDITED_DEPTH
    else:
        max_fields, max_depth = MAX_FIELDS, MAX_DEPTH
    end = _sized_end(data, start, limit)
    position, fields = start + 4, 0
    open_ends: list[tuple[int, bool]] = [(end, True)]
    while open_ends:
        stop, keyed = open_ends[-1]
        if position == stop:
            open_ends.pop()
            continue
        fields += 1
        if fields > max_fields:
            raise ProtocolError(f"table has more than {max_fields} fields")
        if keyed:
            position = _skip_key(data, position, stop)
        position, nested = _skip_value(data, position, stop)
        if nested is not None:
            if len(open_ends) >= max_depth:
                raise ProtocolError(f"table nested deeper than {max_depth}")
            open_ends.append(nested)
    return end


def _sized_end(data: bytes, start: int, limit: int) -> int:
    if start + 4 > limit:
        raise ProtocolError("table is cut off")
    end = start + 4 + _LENGTH.unpack_from(data, start)[0]
    if end > limit:
        raise ProtocolError("table is longer than its frame")
    return int(end)


def _skip_key(data: bytes, position: int, stop: int) -> int:
    after = position + 1 + data[position]
    if after > stop:
        raise ProtocolError("table key is cut off")
    try:
        data[position + 1 : after].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("table key is not UTF-8") from error
    return after


def _skip_value(data: bytes, position: int, stop: int) -> tuple[int, tuple[int, bool] | None]:
    if position >= stop:
        raise ProtocolError("table value is missing")
    kind = data[position]
    position += 1
    width = _FIXED_WIDTH.get(kind)
    if width is not None:
        if position + width > stop:
            raise ProtocolError("table value is cut off")
        return position + width, None
    if kind in _BYTES_TYPES:
        return _sized_end(data, position, stop), None
    if kind in (_TABLE, _ARRAY):
        return position + 4, (_sized_end(data, position, stop), kind == _TABLE)
    raise ProtocolError(f"unknown field type {chr(kind)!r} in a table")


def decode_table(data: bytes, edited: bool = False) -> Table:
    """Decode the table at the beginning of `data`."""
    check_table(data, 0, len(data), edited)
    return decode_checked(data)


def decode_checked(data: bytes) -> Table:
    """Decode a table that `check_table` has accepted."""
    try:
        return _decode_fields(data, 4, 4 + _LENGTH.unpack_from(data)[0])
    except (ValueError, OverflowError, OSError) as error:
        raise ProtocolError(f"undecodable table: {error}") from error


def _decode_fields(data: bytes, position: int, end: int) -> Table:
    table: Table = {}
    while position < end:
        after = position + 1 + data[position]
        key = data[position + 1 : after].decode()
        table[key], position = _decode_value(data, after)
    return table


def _decode_items(data: bytes, position: int, end: int) -> list[Any]:
    items = []
    while position < end:
        value, position = _decode_value(data, position)
        items.append(value)
    return items


def _decode_value(data: bytes, position: int) -> tuple[Any, int]:
    """A checked value, and where it ends. Recurses as deep as the value is nested."""
    kind, position = data[position], position + 1
    width = _FIXED_WIDTH.get(kind)
    if width is not None:
        end = position + width
    else:
        end = position + 4 + _LENGTH.unpack_from(data, position)[0]
        if kind == _TABLE:
            return _decode_fields(data, position + 4, end), end
        if kind == _ARRAY:
            return _decode_items(data, position + 4, end), end
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ValueError(f"unknown type {chr(kind)!r}")
    return decoder(data[position:end])[1], end


class TypedValue(NamedTuple):
    """A value with RabbitMQ's name for its wire type.

    A longstr or binary value is bytes, a timestamp is seconds; a table or an array has typed
    values.
    """

    type: str
    value: Any


def decode_typed(data: bytes) -> dict[str, TypedValue]:
    """Decode a table that `check_table` has accepted, without losing the types of its values."""
    return _decode_typed_fields(data, 4, 4 + _LENGTH.unpack_from(data)[0])


def _decode_typed_fields(data: bytes, position: int, end: int) -> dict[str, TypedValue]:
    fields = {}
    while position < end:
        after = position + 1 + data[position]
        key = data[position + 1 : after].decode()
        fields[key], position = _decode_typed_value(data, after)
    return fields


def _decode_typed_value(data: bytes, position: int) -> tuple[TypedValue, int]:
    kind, start = data[position], position + 1
    name = _TYPE_NAMES[chr(kind)]
    if kind in _FIXED_WIDTH:
        end = start + _FIXED_WIDTH[kind]
        if kind == _TIMESTAMP:
            return TypedValue(name, int.from_bytes(data[start:end], "big")), end
        return TypedValue(name, _decode_value(data, position)[0]), end
    end = start + 4 + _LENGTH.unpack_from(data, start)[0]
    start += 4
    if kind == _TABLE:
        return TypedValue(name, _decode_typed_fields(data, start, end)), end
    if kind != _ARRAY:
        return TypedValue(name, data[start:end]), end
    items = []
    while start < end:
        item, start = _decode_typed_value(data, start)
        items.append(item)
    return TypedValue(name, items), end


def encode_table(table: Mapping[str, Any]) -> bytes:
    fields = b"".join(
        [_encode_key(key) + _encode_value(value) for key, value in sorted(table.items())]
    )
    return _LENGTH.pack(len(fields)) + fields


_encode_key = lru_cache(maxsize=1024)(encode.short_string)


def _encode_value(value: Any) -> bytes:
    """Like pamqp, except for values it would narrow or reject: integers, doubles and bytes.

    RabbitMQ's own headers contain only long integers, and clients in typed languages rely on it.
    Text is tested first because most values are text.
    """
    if type(value) is str:
        text = value.encode()
        return b"S" + _LENGTH.pack(len(text)) + text
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{value} does not fit in 64 bits")
        return b"l" + _LONG.pack(value)
    if isinstance(value, float):
        return b"d" + _DOUBLE.pack(value)
    if isinstance(value, bytes | bytearray):
        return b"x" + _LENGTH.pack(len(value)) + value
    if isinstance(value, Mapping):
        return b"F" + encode_table(value)
    if isinstance(value, list | tuple):
        items = b"".join(map(_encode_value, value))
        return b"A" + _LENGTH.pack(len(items)) + items
    return encode.encode_table_value(value)


def require_encodable(table: Mapping[str, Any]) -> None:
    """Raise ValueError for a table that no client could have sent over AMQP."""
    try:
        require_table_limits(table)
        encoded = encode_table(table)
        check_table(encoded, 0, len(encoded))
    except (ValueError, TypeError, ProtocolError) as error:
        raise ValueError(f"cannot be written as AMQP: {error}") from None
    if len(encoded) > MAX_ARGUMENTS:
        raise ValueError(f"cannot be written as AMQP: longer than {MAX_ARGUMENTS} bytes")


def require_table_limits(table: Mapping[str, Any]) -> None:
    """Raise ValueError for more fields or levels than `check_table` accepts.

    Visits no more fields than are allowed, so that a huge table is rejected before it is encoded.
    """
    fields = 0
    level: list[Any] = [table]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for holder in level:
            fields += len(holder)
            if fields > MAX_FIELDS:
                raise ValueError(f"table has more than {MAX_FIELDS} fields")
            values = holder.values() if isinstance(holder, Mapping) else holder
            inner += [value for value in values if isinstance(value, Mapping | list | tuple)]
        if not inner:
            return
        level = inner
    raise ValueError(f"table nested deeper than {MAX_DEPTH}")


def field_spans(data: bytes, start: int = 0) -> list[tuple[str, str, int, int]]:
    """(key, type, start, end) of each top-level field of a checked table, in order."""
    end = _sized_end(data, start, len(data))
    position = start + 4
    spans = []
    while position < end:
        begin = position
        position = _skip_key(data, position, end)
        key = data[begin + 1 : position].decode()
        kind = chr(data[position])
        position, nested = _skip_value(data, position, end)
        if nested is not None:
            position = nested[0]
        spans.append((key, kind, begin, position))
    return spans


def type_names(data: bytes) -> dict[str, str]:
    """RabbitMQ's name for the wire type of each top-level field."""
    return {key: _TYPE_NAMES[kind] for key, kind, _, _ in field_spans(data)}


def edit_table(data: bytes, remove: frozenset[str], add: Mapping[str, Any]) -> bytes:
    """The table with some keys removed and others added; all other fields keep their bytes."""
    fields = split_fields(data, remove.union(add))[0] + encode_table(add)[4:]
    return _LENGTH.pack(len(fields)) + fields


def split_fields(data: bytes, names: Container[str]) -> tuple[bytes, bytes]:
    """The encoded fields of a checked table: those with other names, and those with these."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for key, _, begin, end in field_spans(data):
        parts[key in names].append(data[begin:end])
    return b"".join(parts[0]), b"".join(parts[1])
