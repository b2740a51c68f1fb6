"""SQLite rows as Arrow arrays, without a Python object per row.

A query here returns ONE row: every column of many stored rows, concatenated by SQLite itself.
Numbers come as decimal text with commas, texts and blobs as one buffer plus their lengths. That
is faster than fetching rows, and it matters where the reader shares a process with the broker:
sqlite3 takes the interpreter lock again for each row it hands over.

`group_concat` skips NULL, so a nullable column is concatenated as empty and its length as -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]


def number_sql(column: str) -> str:
    """SQL for a column of numbers; NULL becomes -1."""
    return f"group_concat(coalesce({column}, -1))"


def bytes_sql(column: str) -> str:
    """SQL for a column of texts or blobs: two result columns, the buffer and the lengths."""
    return (
        f"group_concat(cast(coalesce({column}, '') as text), ''),"
        f" group_concat(coalesce(length(cast({column} as blob)), -1))"
    )


def length_sql(column: str) -> str:
    return f"group_concat(length(cast({column} as blob)))"


def numbers(text: bytes | None) -> Ints:
    if not text:
        return np.empty(0, np.int64)
    return np.fromstring(text.decode(), dtype=np.int64, sep=",")


class Packed:
    """Values of one text or blob column: a buffer, and where each value starts and ends."""

    __slots__ = ("data", "missing", "starts", "widths")

    def __init__(self, data: bytes | None, lengths: bytes | None) -> None:
        widths = numbers(lengths)
        self.data = data or b""
        self.missing = widths < 0
        self.widths: Ints = np.where(self.missing, 0, widths)
        self.starts: Ints = np.cumsum(self.widths) - self.widths

    @classmethod
    def joined(cls, data: bytes, widths: Ints) -> Packed:
        """Values of these widths that stand one after another, none of them missing."""
        packed = cls(data, None)
        packed.widths, packed.starts = widths, np.cumsum(widths) - widths
        packed.missing = np.zeros(len(widths), bool)
        return packed

    def __len__(self) -> int:
        return len(self.widths)

    def array(self, kind: pa.DataType) -> pa.Array:
        return bytes_array(self.data, self.widths, self.missing, kind)


def bytes_array(
    data: bytes | memoryview, widths: Ints, missing: npt.NDArray[np.bool_], kind: pa.DataType
) -> pa.Array:
    """A string or binary array over a buffer in which the values stand one after another."""
    offsets = np.zeros(len(widths) + 1, np.int32)
    np.cumsum(widths, out=offsets[1:])
    validity = None
    if missing.any():
        validity = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    array = pa.Array.from_buffers(kind, len(widths), buffers)
    return array if kind == pa.binary() else _valid_text(array)


def gather(data: npt.NDArray[np.uint8], starts: Ints, widths: Ints) -> bytes:
    """The pieces [start, start + width) of a buffer, one after another."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if len(ends) else 0
    shift = np.repeat(starts - (ends - widths), widths)
    return bytes(data[np.arange(total, dtype=np.int64) + shift])


def times(milliseconds: Ints) -> pa.Array:
    """Milliseconds as Spark's timestamps; negative numbers are missing ones."""
    return pa.array(milliseconds * 1000, type=pa.int64(), mask=milliseconds < 0).cast(
        pa.timestamp("us", tz="UTC")
    )


def looked_up(values: Ints, name: Callable[[int], str | None]) -> pa.Array:
    """The name of each number; `name` is asked once per distinct number."""
    distinct, places = np.unique(values, return_inverse=True)
    return texts([name(value) for value in distinct.tolist()]).take(pa.array(places))


def one_text(text: str | None, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def texts(values: Sequence[Any]) -> pa.Array:
    return pa.array(values, pa.string())


def _valid_text(array: pa.Array) -> pa.Array:
    """The array, or one with the offending characters replaced where bytes are not UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raw = pa.Array.from_buffers(pa.binary(), len(array), array.buffers()).to_pylist()
        return texts([None if item is None else item.decode("utf-8", "replace") for item in raw])
    return array
