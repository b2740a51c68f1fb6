"""The messages of one id range as columns, from packs (format: `leveret.queues.storage.packs`).

Two statements per range, each with one result row: the index of the packs, and the content of those
packs that have a selected message. The first and the last pack may be cut by the range, and any
pack by the selection. There is one Python step per run, none per message.

Checksums are not verified, but an index or content that is inconsistent raises SourceError. Belongs
to the reader's thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
from sqlalchemy import ColumnElement, Text, and_, case, func, literal_column, null, or_, select
from sqlalchemy import cast as sql_cast

from leveret.model.message import FRAME_OVERHEAD, HEADER_FIXED, PART_BYTES
from leveret.queues.storage import schema
from leveret.queues.storage.packs import RUN
from leveret.spark_sink.arrow.chunking import CHUNK_BYTES, CHUNK_ROWS, weight_query
from leveret.spark_sink.arrow.lookups import Origins, read_origins
from leveret.spark_sink.arrow.packed_columns import (
    BoolArray,
    IntArray,
    PackedColumn,
    pack_blobs,
    pack_bytes,
    pack_numbers,
    parse_numbers,
    slices,
    unpack_ids,
    unpack_sizes,
)
from leveret.spark_sink.arrow.selection import Selection
from leveret.spark_sink.arrow.sql import Database, Query, parameter
from leveret.spark_sink.arrow.stored_rows import Conditions, is_selected_vhost
from leveret.spark_sink.errors import SourceError

_DAMAGED = "cannot be read: the database file is damaged."
_RUN_NUMBERS = ("count", "time_ms", "origin", "exchange_size", "key_size")
_RUN = np.dtype(
    [(name, f"<{code}") for name, code in zip(_RUN_NUMBERS, RUN.format[1:], strict=True)]
)
_FRAME_HEAD = 7
_HEADER_SIZE_AT = 3
_BODY_SIZE_AT = 11
_PROPERTIES_AT = _FRAME_HEAD + HEADER_FIXED
_MIN_FRAMES = _PROPERTIES_AT + 2 + 1
"""A header frame with no property."""
_MESSAGE_WEIGHT = CHUNK_BYTES // CHUNK_ROWS
_packs = schema.message_packs.c
_older = schema.message_packs.alias("older").c
_EMPTY: ColumnElement[Any] = literal_column("''")
_ZERO: ColumnElement[int] = literal_column("0")
_ID_BYTES: ColumnElement[int] = literal_column("8")
_SIZE_BYTES: ColumnElement[int] = literal_column("4")

_first_pack: ColumnElement[int] = func.coalesce(
    select(func.max(_older.id)).where(_older.id <= parameter("low")).scalar_subquery(),
    parameter("low"),
)
_ENDS_IN_RANGE: ColumnElement[bool] = _packs.last_id >= parameter("low")
_IN_RANGE: Conditions = [
    _packs.id >= _first_pack, _packs.id < parameter("stop"), _ENDS_IN_RANGE
]  # fmt: skip

_parts = (
    select(sql_cast(schema.body_parts.c.data, Text).label("data"))
    .where(
        schema.body_parts.c.id >= _packs.first_part,
        schema.body_parts.c.id < _packs.first_part + _packs.parts,
    )
    .order_by(schema.body_parts.c.id)
    .correlate(schema.message_packs)
    .subquery()
)
_joined_parts: ColumnElement[Any] = func.coalesce(
    select(func.group_concat(_parts.c.data, _EMPTY)).select_from(_parts).scalar_subquery(), _EMPTY
)
_data: ColumnElement[Any] = func.coalesce(_packs.data, _joined_parts)
_data_and_parts: ColumnElement[Any] = case(
    (_packs.parts == _ZERO, _packs.data),
    else_=func.coalesce(sql_cast(_packs.data, Text), _EMPTY).concat(_joined_parts),
)

_FIRST_PACK = Query(
    select(_packs.id, _packs.ids).where(*_IN_RANGE).order_by(_packs.id).limit(literal_column("1"))
)


def first_message(database: Database, low: int, stop: int) -> int | None:
    """The first message id of [low, stop); None if there is none."""
    row = database.row(_FIRST_PACK, low=low, stop=stop)
    if not row:
        return None
    first, packed_ids = row
    if first >= low or packed_ids is None:
        return max(int(first), low)
    ids = unpack_ids(packed_ids)
    following = ids[(ids >= low) & (ids < stop)]
    return int(following[0]) if len(following) else None


class PackQueries:
    """The queries for some columns of some packs, compiled once.

    `needed` are of "runs", "properties", "body" and "body_bytes".
    """

    def __init__(self, needed: frozenset[str], conditions: Conditions) -> None:
        self.needs_runs = "runs" in needed
        self.needs_content = not needed.isdisjoint(("properties", "body", "body_bytes"))
        self.needs_sizes_only = self.needs_content and needed.isdisjoint(("properties", "body"))
        self.weights = weight_query(
            schema.message_packs, _weight(needed), [*conditions, _ENDS_IN_RANGE], _first_pack
        )
        self.index = _index_query([*_IN_RANGE, *conditions], needed)
        self.content = _content_query(_data_and_parts if "body" in needed else _data, conditions)


def _weight(needed: frozenset[str]) -> ColumnElement[int]:
    """The weight of a pack: no chunk has too many messages, or too many bytes of content."""
    rows: ColumnElement[int] = _packs["count"] * literal_column(str(_MESSAGE_WEIGHT))
    data, parts = func.length(_packs.data), _packs.parts * literal_column(str(PART_BYTES))
    if "body" in needed:
        return func.max(rows, func.coalesce(data, _ZERO) + parts)
    if needed.isdisjoint(("properties", "body_bytes")):
        return rows
    return func.max(rows, func.coalesce(data, parts))


_has_listed_ids: ColumnElement[bool] = func.length(_packs.ids) == _packs["count"] * _ID_BYTES
_has_consecutive_ids: ColumnElement[bool] = and_(
    _packs.ids.is_(None), _packs.last_id - _packs.id == _packs["count"] - literal_column("1")
)
_shape: ColumnElement[int] = case(
    (func.length(_packs.sizes) != _packs["count"] * _SIZE_BYTES, _ZERO),
    (_has_consecutive_ids, _packs["count"]),
    (_has_listed_ids, -_packs["count"]),
    else_=_ZERO,
).label("shape")
"""The number of messages, negative if their ids are listed; 0 if the pack is damaged.

One number for all of this: there may be as many packs as messages, and each number takes time.
"""


def _index_query(conditions: Conditions, needed: frozenset[str]) -> Query:
    columns = [_packs.id, _shape, _packs.ids, _packs.body_bytes, _packs.runs]
    rows = select(*columns).where(*conditions).order_by(_packs.id).subquery().c
    packed = [pack_numbers(rows.id), pack_numbers(rows.shape), pack_blobs(rows.ids)]
    packed.append(pack_numbers(rows.body_bytes) if "body_bytes" in needed else null())
    packed += pack_bytes(rows.runs) if "runs" in needed else ()
    return Query(select(*packed))


def _content_query(data: ColumnElement[Any], conditions: Conditions) -> Query:
    """All packs from `first` to `last`, or those that `packs` lists."""
    listed = func.json_each(parameter("packs")).table_valued("value")
    is_chosen = or_(parameter("packs").is_(None), _packs.id.in_(select(listed.c.value)))
    between = _packs.id.between(parameter("first"), parameter("last"))
    rows = (
        select(_packs.sizes, data.label("data"))
        .where(between, is_chosen, *conditions)
        .order_by(_packs.id)
        .subquery()
        .c
    )
    return Query(select(pack_blobs(rows.sizes), *pack_bytes(rows.data)))


class StoredMessages:
    """The messages of one id range that a selection contains; one element per message.

    Messages that the broker published have no origin, and are of any vhost here. What was not
    requested from `PackQueries` must not be asked for.
    """

    def __init__(
        self, database: Database, queries: PackQueries, span: tuple[int, int], selection: Selection
    ) -> None:
        row = database.row(queries.index, low=span[0], stop=span[1])
        self._database = database
        self._index = index = _Index(row)
        mask: BoolArray = (index.message_ids >= span[0]) & (index.message_ids < span[1])
        if queries.needs_runs:
            self._runs = _Runs(index, PackedColumn(row[4], row[5]))
            run_of: IntArray = np.repeat(np.arange(len(self._runs.counts)), self._runs.counts)
            mask &= self._selected_runs(selection)[run_of]
            self._run_of = run_of[mask]
        self.ids: IntArray = index.message_ids[mask]
        self.bytes = 0
        if queries.needs_content:
            self._pack_of = index.pack_of[mask]
            self._content, self._has_content = self._read_content(queries, mask)
            self.bytes = len(self._content.data)

    def times(self) -> IntArray:
        return self._runs.times[self._run_of]

    def origins(self) -> IntArray:
        """0 where the broker itself published the message."""
        return self._runs.origins[self._run_of]

    def exchanges(self) -> pa.Array:
        return self._runs.exchanges().take(pa.array(self._run_of))

    def routing_keys(self) -> pa.Array:
        return self._runs.routing_keys().take(pa.array(self._run_of))

    def origin(self, name: str) -> pa.Array:
        """A column of the origins; null where the broker itself published the message."""
        return self._run_origins(name).take(pa.array(self._run_of))

    def properties(self) -> tuple[bytes, IntArray, IntArray]:
        """A buffer, and where the properties of each message begin in it and how long they are."""
        return self._content.properties()

    def bodies(self) -> pa.Array:
        """Null where the body was not kept."""
        return self._content.bodies()

    def body_bytes(self) -> IntArray:
        """The sizes that the bodies had when they were published."""
        sizes = self._index.body_bytes[self._pack_of]
        sizes[self._has_content] = self._content.body_sizes
        return sizes

    def _selected_runs(self, selection: Selection) -> BoolArray:
        runs = self._runs
        mask: BoolArray = np.ones(len(runs.counts), bool)
        if selection.since_ms is not None:
            mask &= runs.times >= selection.since_ms
        if selection.until_ms is not None:
            mask &= runs.times < selection.until_ms
        if selection.vhosts:
            mask &= (runs.origins == 0) | is_selected_vhost(self._run_origins("vhost"), selection)
        return mask

    def _run_origins(self, name: str) -> pa.Array:
        return getattr(self._origins, name).take(self._origins.index_of(self._runs.origins))

    @cached_property
    def _origins(self) -> Origins:
        return read_origins(self._database, self._runs.origins)

    def _read_content(self, queries: PackQueries, mask: BoolArray) -> tuple[_Content, BoolArray]:
        """The content of packs with selected messages, and which of these messages it has.

        If only sizes are needed, a pack of one message is not read: its row has the size.
        """
        index = self._index
        chosen: BoolArray = np.zeros(len(index.ids), bool)
        chosen[self._pack_of] = True
        if queries.needs_sizes_only:
            chosen &= (index.counts > 1) & (index.body_bytes > 0)
        row = self._content_row(queries.content, index.ids[chosen], is_all=bool(chosen.all()))
        content = _Content(row, index, chosen, mask[chosen[index.pack_of]])
        return content, chosen[self._pack_of]

    def _content_row(self, query: Query, packs: IntArray, *, is_all: bool) -> tuple[Any, ...]:
        if not len(packs):
            return (None, None, None)
        listed = None if is_all else json.dumps(packs.tolist())
        return self._database.row(query, first=int(packs[0]), last=int(packs[-1]), packs=listed)


class _Index:
    """The packs, and the ids of their messages."""

    def __init__(self, row: Sequence[Any]) -> None:
        self.ids, shapes = parse_numbers(row[0]), parse_numbers(row[1])
        self.body_bytes = parse_numbers(row[3])
        if len(self.ids) != len(shapes):
            raise SourceError(f"The index of some messages {_DAMAGED}")
        self.refuse(np.flatnonzero(shapes == 0))
        self.counts: IntArray = np.abs(shapes)
        self.pack_of: IntArray = np.repeat(np.arange(len(self.ids)), self.counts)
        self.message_ids = self._message_ids(shapes < 0, row[2])

    def _message_ids(self, is_listed: BoolArray, packed_ids: bytes | None) -> IntArray:
        first = np.cumsum(self.counts) - self.counts
        message_ids: IntArray = np.arange(len(self.pack_of)) + (self.ids - first)[self.pack_of]
        if is_listed.any():
            message_ids[is_listed[self.pack_of]] = unpack_ids(packed_ids)
        self.refuse(np.flatnonzero(message_ids[first] != self.ids))
        self.refuse(self.pack_of[1:][message_ids[1:] <= message_ids[:-1]])
        return message_ids

    def refuse(self, packs: IntArray) -> None:
        """Raise SourceError if there are any: these packs are damaged."""
        if len(packs):
            first = int(self.ids[packs[0]])
            raise SourceError(f"The index of the messages from {first} on {_DAMAGED}")


class _Runs:
    """What consecutive messages share; one element per run."""

    def __init__(self, index: _Index, packed: PackedColumn) -> None:
        self._data = packed.data
        packs, self._starts, runs = self._walk(packed)
        self.counts, self.times, self.origins, self._names, self._keys = (
            np.ascontiguousarray(runs[name]).astype(np.int64) for name in _RUN.names or ()
        )
        packs_read, widths = len(index.ids), RUN.size + self._names + self._keys
        index.refuse(packs[(self.times < 0) | (self.origins < 0)])
        index.refuse(np.flatnonzero(np.bincount(packs, widths, packs_read) != packed.widths))
        index.refuse(np.flatnonzero(np.bincount(packs, self.counts, packs_read) != index.counts))

    def _walk(self, packed: PackedColumn) -> tuple[IntArray, IntArray, Any]:
        """The pack of each run, the position after its numbers, and these numbers.

        A run tells where the next one begins, so the first runs of all packs are read, then their
        second ones, and so on.
        """
        ends, size = packed.starts + packed.widths, max(len(packed.data) - RUN.size + 1, 0)
        data: Any = np.ndarray((size,), _RUN, packed.data, strides=(1,))
        packs, at = np.arange(len(ends)), packed.starts
        steps = [(packs[:0], at[:0], data[:0])]
        while True:
            has_more = at + RUN.size <= ends[packs]
            packs, at = packs[has_more], at[has_more]
            if not len(packs):
                break
            runs = data[at]
            at = at + RUN.size
            steps.append((packs, at, runs))
            at = at + runs["exchange_size"] + runs["key_size"]
        all_packs, starts, all_runs = (
            np.concatenate(column) for column in zip(*steps, strict=True)
        )
        order = np.argsort(all_packs, kind="stable")
        return all_packs[order], starts[order], all_runs[order]

    def exchanges(self) -> pa.Array:
        return self._texts(self._starts, self._names)

    def routing_keys(self) -> pa.Array:
        return self._texts(self._starts + self._names, self._keys)

    def _texts(self, starts: IntArray, widths: IntArray) -> pa.Array:
        return slices(self._data, starts, widths, np.zeros(len(starts), bool), pa.string())


class _Content:
    """The frames of some messages in the joined data of their packs; one element per message.

    The data of a pack with a body in parts is the header frame, and after it the body if bodies
    are needed. `is_inside` selects from the messages of the chosen packs.
    """

    def __init__(
        self, row: Sequence[Any], index: _Index, chosen: BoolArray, is_inside: BoolArray
    ) -> None:
        counts, packed = index.counts[chosen], PackedColumn(row[1], row[2])
        sizes = unpack_sizes(row[0])
        if len(packed) != len(counts) or len(sizes) != len(is_inside):
            raise SourceError(f"The content of some messages {_DAMAGED}")
        ends = np.cumsum(sizes)
        pack_ends = ends[np.cumsum(counts) - 1]
        in_parts = packed.widths - np.diff(pack_ends, prepend=0)
        shifts = packed.starts + packed.widths - in_parts - pack_ends
        self.data = packed.data
        self._ids = index.message_ids[chosen[index.pack_of]][is_inside]
        self._sizes = sizes[is_inside]
        self._starts = (ends - sizes + np.repeat(shifts, counts))[is_inside]
        self._in_parts = np.repeat(in_parts, counts)[is_inside]
        is_filled = (in_parts == 0) | ((in_parts > 0) & (counts == 1))
        self._check((self._sizes >= _MIN_FRAMES) & np.repeat(is_filled, counts)[is_inside])
        self._header_sizes = self._big_endian(self._starts + _HEADER_SIZE_AT, ">u4")
        self.body_sizes = self._big_endian(self._starts + _BODY_SIZE_AT, ">u8")
        self._body_frames = self._sizes - self._header_sizes - FRAME_OVERHEAD
        self._check_frames()

    def _check_frames(self) -> None:
        has_frame = (self.body_sizes > 0) & (self._body_frames == self.body_sizes + FRAME_OVERHEAD)
        has_no_frame = (self.body_sizes >= 0) & (self._body_frames == 0)
        has_no_parts = self._in_parts == 0
        is_sound = has_frame & has_no_parts
        is_sound |= has_no_frame & (has_no_parts | (self._in_parts == self.body_sizes))
        self._check(is_sound & (self._header_sizes > HEADER_FIXED))

    def properties(self) -> tuple[bytes, IntArray, IntArray]:
        """The data, and where in it the properties begin and how long they are."""
        return self.data, self._starts + _PROPERTIES_AT, self._header_sizes - HEADER_FIXED

    def bodies(self) -> pa.Array:
        missing = (self.body_sizes > 0) & (self._body_frames == 0) & (self._in_parts == 0)
        before = np.where(self._in_parts > 0, 0, _FRAME_HEAD)
        starts = self._starts + self._header_sizes + FRAME_OVERHEAD + before
        widths = np.where(missing, 0, self.body_sizes)
        return slices(self.data, starts, widths, missing, pa.binary())

    def _big_endian(self, positions: IntArray, kind: str) -> IntArray:
        """The numbers at these positions of the data; those of 2**63 or more become negative."""
        if not len(positions):
            return positions
        width = np.dtype(kind).itemsize
        numbers: Any = np.ndarray((len(self.data) - width + 1,), kind, self.data, strides=(1,))
        return cast(IntArray, numbers[positions].astype(np.int64))

    def _check(self, is_sound: BoolArray) -> None:
        """Raise SourceError if one of the messages is damaged."""
        if not is_sound.all():
            message = int(self._ids[np.argmin(is_sound)])
            raise SourceError(f"The content of message {message} {_DAMAGED}")
