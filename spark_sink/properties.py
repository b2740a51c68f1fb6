"""Property lists of many messages at once, as Arrow columns.

Input is the wire form (flags, then the properties in the protocol's order), one message after
another in a buffer. All messages are walked together: one step per property, each step moving a
vector of positions. Only header tables are decoded one by one, each distinct table once.

The broker checked every list before it stored it; bytes that do not fit raise SourceError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leveret.model.properties import NAMES
from leveret.model.tables import decode_table
from spark_sink.errors import SourceError
from spark_sink.packed import Ints, Packed, bytes_array, gather
from spark_sink.schemas import TEXT_MAP

_NUMBERS = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
TEXT_NAMES = tuple(name for name in NAMES if name not in _NUMBERS and name != "headers")


class PropertyColumns:
    """Where each property of each message stands; columns are built when asked for."""

    def __init__(self, packed: Packed) -> None:
        self._data = np.frombuffer(packed.data, np.uint8)
        self._present: dict[str, npt.NDArray[np.bool_]] = {}
        self._starts: dict[str, Ints] = {}
        self._widths: dict[str, Ints] = {}
        ends = packed.starts + packed.widths
        flags = self._big_endian(packed.starts, packed.widths >= 2, 2)
        position = packed.starts + 2
        for index, name in enumerate(NAMES):
            present = (flags >> (15 - index)) & 1 == 1
            lead, width = self._measure(name, position, present)
            self._present[name] = present
            self._starts[name] = position + lead
            self._widths[name] = width
            position = position + np.where(present, lead + width, 0)
        if np.any((position != ends) & (packed.widths > 0)):
            raise SourceError("A stored message has properties that do not fit their bytes.")

    def text(self, name: str) -> pa.Array:
        return self._pieces(name, pa.string())

    def number(self, name: str, kind: pa.DataType) -> pa.Array:
        present = self._present[name]
        values = self._big_endian(self._starts[name], present, _NUMBERS[name])
        # A 64-bit timestamp above 2**63 is no time anyone meant.
        return pa.array(values, mask=~present | (values < 0)).cast(kind)

    def headers(self) -> pa.Array:
        """map<string,string> of header fields; null where a message has no header table."""
        return mapped(self._pieces("headers", pa.binary()), _header_texts)

    def others(self) -> pa.Array:
        """map<string,string> of every other property that is set, by name."""
        names = [name for name in NAMES if name != "headers" and self._present[name].any()]
        rows = len(self._present["headers"])
        if not names:
            return _maps({} for _ in range(rows))
        columns = pa.concat_arrays([self._as_text(name) for name in names])
        present = np.column_stack([self._present[name] for name in names])
        row, which = np.nonzero(present)
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(present.sum(axis=1), out=offsets[1:])
        return pa.MapArray.from_arrays(
            pa.array(offsets),
            pa.array(names, pa.string()).take(pa.array(which)),
            columns.take(pa.array(which * rows + row)),
            TEXT_MAP,
        )

    def _as_text(self, name: str) -> pa.Array:
        if name in _NUMBERS:
            return self.number(name, pa.int64()).cast(pa.string())
        return self.text(name)

    def _pieces(self, name: str, kind: pa.DataType) -> pa.Array:
        present = self._present[name]
        widths = np.where(present, self._widths[name], 0)
        return bytes_array(gather(self._data, self._starts[name], widths), widths, ~present, kind)

    def _measure(
        self, name: str, position: Ints, present: npt.NDArray[np.bool_]
    ) -> tuple[int, Ints]:
        """How many bytes to skip before the value, and how wide each value is."""
        if name in _NUMBERS:
            return 0, np.full(len(position), _NUMBERS[name], np.int64)
        if name == "headers":
            return 0, 4 + self._big_endian(position, present, 4)
        return 1, self._big_endian(position, present, 1)

    def _big_endian(self, position: Ints, wanted: npt.NDArray[np.bool_], width: int) -> Ints:
        value = np.zeros(len(position), np.int64)
        where = position[wanted]
        if len(where) and int(where.max()) + width > len(self._data):
            raise SourceError("A stored message has properties that do not fit their bytes.")
        found = np.zeros(len(where), np.int64)
        for step in range(width):
            found = (found << 8) | self._data[where + step]
        value[wanted] = found
        return value


def mapped(blobs: pa.Array, decode: Any) -> pa.Array:
    """Each distinct blob decoded once, into a map column."""
    encoded = blobs.dictionary_encode()
    maps = _maps(decode(blob) for blob in encoded.dictionary.to_pylist())
    if not len(maps):
        return pa.nulls(len(blobs), TEXT_MAP)
    return maps.take(encoded.indices)


def header_text(value: Any) -> str | None:
    """A header value as text: text as it is, bytes as UTF-8, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))


def _header_texts(blob: bytes) -> dict[str, str | None]:
    return {name: header_text(value) for name, value in decode_table(blob).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def _maps(rows: Iterable[dict[str, str | None]]) -> pa.Array:
    offsets: list[int] = [0]
    keys: list[str] = []
    values: list[str | None] = []
    for row in rows:
        keys.extend(row)
        values.extend(row.values())
        offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string()),
        TEXT_MAP,
    )  # fmt: skip
