"""Property lists of many messages at once, as Arrow columns.

The input is the wire form (flags, then the properties in the protocol's order) of many messages in
one buffer. All messages are parsed together: one step per property, and each step
advances a vector of positions. Only header tables are decoded one by one, each distinct table once.

The broker checks every property list before storing it; a malformed list raises SourceError.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from leveret.model.message import PROPERTY_NAMES
from leveret.model.tables import TypedValue, check_table, decode_table, decode_typed
from leveret.spark_sink.arrow.packed_columns import (
    BoolArray,
    IntArray,
    slices,
)
from leveret.spark_sink.arrow.schemas import TEXT_MAP, TYPED_MAP
from leveret.spark_sink.errors import SourceError

_NUMBERS = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_MALFORMED = "A stored message has malformed properties: the database file is damaged."
TEXT_NAMES = tuple(name for name in PROPERTY_NAMES if name not in _NUMBERS and name != "headers")


class PropertyColumns:
    """The position of each property of each message; columns are built on request."""

    def __init__(self, data: bytes, starts: IntArray, widths: IntArray) -> None:
        """`starts` and `widths` are those of the property lists in `data`, in order."""
        self._bytes = data
        self._data = np.frombuffer(data, np.uint8)
        self._present: dict[str, BoolArray] = {}
        self._starts: dict[str, IntArray] = {}
        self._widths: dict[str, IntArray] = {}
        ends = starts + widths
        flags = self._big_endian(starts, widths >= 2, 2)
        position = starts + 2
        for index, name in enumerate(PROPERTY_NAMES):
            present = (flags >> (15 - index)) & 1 == 1
            lead, width = self._measure(name, position, present)
            self._present[name] = present
            self._starts[name] = position + lead
            self._widths[name] = width
            position = position + np.where(present, lead + width, 0)
        if np.any((position != ends) & (widths > 0)):
            raise SourceError(_MALFORMED)

    def text(self, name: str) -> pa.Array:
        return self._values(name, pa.string())

    def number(self, name: str, kind: pa.DataType) -> pa.Array:
        present = self._present[name]
        values = self._big_endian(self._starts[name], present, _NUMBERS[name])
        # A timestamp of 2**63 or more is negative here, and not a sensible time: null.
        return pa.array(values, mask=~present | (values < 0)).cast(kind)

    def headers(self) -> pa.Array:
        """map<string,string> of header fields; null for a message without headers."""
        return decode_maps(self._values("headers", pa.binary()), _header_texts, TEXT_MAP)

    def typed_headers(self) -> pa.Array:
        """The same fields with the type of each, and with the bytes of texts and binary values."""
        return decode_maps(self._values("headers", pa.binary()), decode_typed_headers, TYPED_MAP)

    def others(self) -> pa.Array:
        """map<string,string> of every other property that is set, by name."""
        names = [name for name in PROPERTY_NAMES if name != "headers" and self._present[name].any()]
        rows = len(self._present["headers"])
        if not names:
            return _map_array([{}] * rows, TEXT_MAP)
        columns = pa.concat_arrays([self._as_text(name) for name in names])
        present = np.column_stack([self._present[name] for name in names])
        row, column = np.nonzero(present)
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(present.sum(axis=1), out=offsets[1:])
        return pa.MapArray.from_arrays(
            pa.array(offsets),
            pa.array(names, pa.string()).take(pa.array(column)),
            columns.take(pa.array(column * rows + row)),
            TEXT_MAP,
        )

    def _as_text(self, name: str) -> pa.Array:
        if name in _NUMBERS:
            return self.number(name, pa.int64()).cast(pa.string())
        return self.text(name)

    def _values(self, name: str, kind: pa.DataType) -> pa.Array:
        present = self._present[name]
        widths = np.where(present, self._widths[name], 0)
        return slices(self._bytes, self._starts[name], widths, ~present, kind)

    def _measure(self, name: str, position: IntArray, present: BoolArray) -> tuple[int, IntArray]:
        """How many bytes to skip before the value, and how wide each value is."""
        if name in _NUMBERS:
            return 0, np.full(len(position), _NUMBERS[name], np.int64)
        if name == "headers":
            return 0, 4 + self._big_endian(position, present, 4)
        return 1, self._big_endian(position, present, 1)

    def _big_endian(self, position: IntArray, present: BoolArray, width: int) -> IntArray:
        """The integer of `width` bytes at each position; 0 where it is not present."""
        starts = position[present]
        if len(starts) and int(starts.max()) + width > len(self._data):
            raise SourceError(_MALFORMED)
        numbers = np.zeros(len(starts), np.int64)
        for step in range(width):
            numbers = (numbers << 8) | self._data[starts + step]
        values = np.zeros(len(position), np.int64)
        values[present] = numbers
        return values


def decode_maps(
    blobs: pa.Array, decode: Callable[[bytes], dict[str, Any]], kind: pa.MapType
) -> pa.Array:
    """A map column; each distinct blob is decoded once."""
    encoded = blobs.dictionary_encode()
    maps = _map_array((decode(blob) for blob in encoded.dictionary.to_pylist()), kind)
    if not len(maps):
        return pa.nulls(len(blobs), kind)
    return maps.take(encoded.indices)


def header_text(value: Any) -> str | None:
    """A header value as text: text unchanged, bytes decoded as UTF-8, other values as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))


def _header_texts(blob: bytes) -> dict[str, str | None]:
    return {name: header_text(value) for name, value in decode_table(blob, edited=True).items()}


def decode_typed_headers(blob: bytes) -> dict[str, dict[str, Any]]:
    """Type, text and bytes of each field. In the text of a table or array, values have types, too.

    A text that is not valid UTF-8 has bytes only, like a binary value.
    """
    check_table(blob, 0, len(blob), edited=True)
    return {name: _typed_header(field) for name, field in decode_typed(blob).items()}


def _typed_header(field: TypedValue) -> dict[str, Any]:
    kind, value = field
    content = value if isinstance(value, bytes) else None
    text: str | None
    if kind in ("table", "array"):
        text = json.dumps(_nested(field)["value"], ensure_ascii=False, separators=(",", ":"))
    elif kind == "longstr":
        text = _maybe_text(value)
    elif kind in ("void", "binary"):
        text = None
    else:
        text = json.dumps(value, default=str).strip('"')  # a decimal is a text
    return {"type": kind, "value": text, "bytes": content}


def _nested(field: TypedValue) -> dict[str, Any]:
    """A value in JSON; bytes that are no text are base64."""
    kind, value = field
    if kind == "table":
        return {"type": kind, "value": {name: _nested(each) for name, each in value.items()}}
    if kind == "array":
        return {"type": kind, "value": [_nested(each) for each in value]}
    if isinstance(value, bytes):
        text = _maybe_text(value) if kind == "longstr" else None
        if text is None:
            return {"type": kind, "base64": base64.b64encode(value).decode()}
        return {"type": kind, "value": text}
    return {"type": kind, "value": value if kind != "decimal" else str(value)}


def _maybe_text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def _map_array(rows: Iterable[dict[str, Any]], kind: pa.MapType) -> pa.Array:
    offsets: list[int] = [0]
    keys: list[str] = []
    values: list[Any] = []
    for row in rows:
        keys.extend(row)
        values.extend(row.values())
        offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()),
        pa.array(values, kind.item_type), kind,
    )  # fmt: skip
