"""Reads SQLite rows into Arrow arrays without a Python object per row.

A query here returns ONE row: every column of many stored rows, concatenated by SQLite itself.
Numbers come as decimal text with commas, texts and blobs as one buffer plus their lengths. That
is faster than fetching rows, and it matters when the reader runs in the broker's process: sqlite3
reacquires the interpreter lock for each row it returns.

`group_concat` skips NULL, so a nullable column is concatenated as empty and its length as -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlalchemy import ColumnElement, LargeBinary, Text, cast, func, literal_column

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_EMPTY: ColumnElement[Any] = literal_column("''")
_MINUS_ONE: ColumnElement[Any] = literal_column("-1")


def pack_numbers(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """SQL for a column of numbers; NULL becomes -1."""
    return func.group_concat(func.coalesce(column, _MINUS_ONE))


def pack_bytes(column: ColumnElement[Any]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """SQL for a column of texts or blobs: two result columns, the buffer and the lengths."""
    return (
        func.group_concat(cast(func.coalesce(column, _EMPTY), Text), _EMPTY),
        func.group_concat(func.coalesce(func.length(cast(column, LargeBinary)), _MINUS_ONE)),
    )


def pack_blobs(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """SQL for a column of blobs whose lengths are known, such as packed ids: the buffer only."""
    return func.group_concat(cast(column, Text), _EMPTY)


def unpack_ids(data: bytes | None) -> IntArray:
    return np.frombuffer(data or b"", "<u8").astype(np.int64)


def unpack_sizes(data: bytes | None) -> IntArray:
    return np.frombuffer(data or b"", "<u4").astype(np.int64)


def parse_numbers(text: bytes | None) -> IntArray:
    if not text:
        return np.empty(0, np.int64)
    return np.fromstring(text.decode(), dtype=np.int64, sep=",")


class PackedColumn:
    """Values of one text or blob column: a buffer, and where each value starts and ends."""

    __slots__ = ("data", "missing", "starts", "widths")

    def __init__(self, data: bytes | None, lengths: bytes | None) -> None:
        widths = parse_numbers(lengths)
        self.data = data or b""
        self.missing: BoolArray = widths < 0
        self.widths: IntArray = np.where(self.missing, 0, widths)
        self.starts: IntArray = np.cumsum(self.widths) - self.widths

    @classmethod
    def from_widths(cls, data: bytes, widths: IntArray) -> PackedColumn:
        """Values of the given widths, concatenated in `data`; none of them is missing."""
        packed = cls(data, None)
        packed.widths, packed.starts = widths, np.cumsum(widths) - widths
        packed.missing = np.zeros(len(widths), bool)
        return packed

    def __len__(self) -> int:
        return len(self.widths)

    def array(self, kind: pa.DataType) -> pa.Array:
        return bytes_array(self.data, self.widths, self.missing, kind)


def bytes_array(
    data: bytes | memoryview, widths: IntArray, missing: BoolArray, kind: pa.DataType
) -> pa.Array:
    """A string or binary array over a buffer of concatenated values."""
    offsets = np.zeros(len(widths) + 1, np.int32)
    np.cumsum(widths, out=offsets[1:])
    validity = None
    if missing.any():
        validity = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    array = pa.Array.from_buffers(kind, len(widths), buffers)
    return array if kind == pa.binary() else _valid_text(array)


def slices(
    data: bytes, starts: IntArray, widths: IntArray, missing: BoolArray, kind: pa.DataType
) -> pa.Array:
    """The pieces [start, start + width) of a buffer; they are in order and do not overlap.

    Pieces and the gaps between them are the elements of one array, and the pieces are taken.
    """
    rows = len(starts)
    if missing.all():
        return pa.nulls(rows, kind)
    edges = np.empty(2 * rows, np.int32)
    np.minimum(starts, len(data), out=edges[::2], casting="unsafe")
    np.minimum(starts + widths, len(data), out=edges[1::2], casting="unsafe")
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    both = pa.Array.from_buffers(kind, 2 * rows - 1, buffers)
    pieces = both.take(pa.array(np.arange(0, 2 * rows, 2), mask=missing))
    return pieces if kind == pa.binary() else _valid_text(pieces)


def timestamp_array(milliseconds: IntArray) -> pa.Array:
    """Milliseconds as Spark's timestamps; negative numbers become null."""
    return pa.array(milliseconds * 1000, type=pa.int64(), mask=milliseconds < 0).cast(
        pa.timestamp("us", tz="UTC")
    )


def map_to_text(numbers: IntArray, text_of: Callable[[int], str | None]) -> pa.Array:
    """The text of each number; `text_of` is called once per distinct number."""
    distinct, indexes = np.unique(numbers, return_inverse=True)
    return text_array([text_of(number) for number in distinct.tolist()]).take(pa.array(indexes))


def constant_text(text: str | None, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def text_array(values: Sequence[Any]) -> pa.Array:
    return pa.array(values, pa.string())


def _valid_text(array: pa.Array) -> pa.Array:
    """The array itself, or a copy with invalid UTF-8 replaced."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = pa.Array.from_buffers(pa.binary(), len(array), array.buffers()).to_pylist()
        return text_array(
            [None if item is None else item.decode("utf-8", "replace") for item in raw]
        )
    return array
