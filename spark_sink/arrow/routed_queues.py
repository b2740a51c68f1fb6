"""The queues each message was routed to: columns `queue` and `queues` of the table `messages`.

A message's `enqueued` events are in the commit of its content, so the answer is final as soon as
the message can be read, and no later event changes it. Ids of messages and of events both grow
from commit to commit. So the events of a range of messages are found by binary search, and ranges
are read one after another: the cost is proportional to what is read.

Where retention has trimmed the events of messages that are still in a queue, the snapshots of
their queues are read as well. Queues without history are left out. Belongs to the reader's thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from sqlalchemy import ColumnElement, func, literal_column, select

from leveret.model.history import EventKind
from leveret.queues.storage import schema
from leveret.spark_sink.arrow.chunking import chunk_ranges, weight_query
from leveret.spark_sink.arrow.lookups import QueueRow, queues_without_history, read_queues
from leveret.spark_sink.arrow.packed_columns import (
    BoolArray,
    IntArray,
    map_to_text,
    pack_blobs,
    pack_numbers,
    parse_numbers,
    unpack_ids,
)
from leveret.spark_sink.arrow.sql import Database, Query, is_one_of, parameter

WINDOW_IDS = 1 << 18
"""Messages looked up at once, unless many queues received each of them."""
WINDOW_PAIRS = 1 << 21
"""Above this many pairs of message and queue, a window is cut down to what is needed."""
# Rows within one commit are in no guaranteed order. Events of a message are looked for within this
# many message ids and this many event rows of where binary search finds them.
COMMIT_IDS = 1 << 16
COMMIT_ROWS = 1 << 13
_END = 2**62
_events = schema.events.c
_ENQUEUED = is_one_of(_events.kind, (EventKind.ENQUEUED, EventKind.ENQUEUED_TRANSIENT))
_SNAPSHOT: ColumnElement[bool] = _events.kind == int(EventKind.SNAPSHOT)
_NO_IDS: IntArray = np.empty(0, np.int64)

_FIRST_EVENT = Query(select(func.min(_events.id)))
_LAST_EVENT = Query(select(func.max(_events.id)))
_NEXT_ENQUEUED = Query(
    select(_events.id, _events.first_id)
    .where(_events.id >= parameter("low"), _events.id < parameter("stop"), _ENQUEUED)
    .order_by(_events.id)
    .limit(literal_column("1"))
)
_FIRST_PUBLISHED = Query(
    select(_events.first_id)
    .where(_events.queue_id == 0, _events.kind == int(EventKind.PUBLISHED))
    .order_by(_events.id)
    .limit(literal_column("1"))
)


@dataclass(frozen=True, slots=True)
class RoutedQueues:
    """For some messages: how many queues each was routed to, and the ids of these queues."""

    counts: IntArray
    queue_ids: IntArray
    queues: dict[int, QueueRow]

    def first_ids(self) -> IntArray:
        """The id of each message's first queue; 0 if it was routed to none."""
        first_ids = np.zeros(len(self.counts), np.int64)
        starts = np.cumsum(self.counts) - self.counts
        first_ids[self.counts > 0] = self.queue_ids[starts[self.counts > 0]]
        return first_ids

    def first_names(self) -> pa.Array:
        return self._names(self.first_ids())

    def all_names(self) -> pa.Array:
        offsets = np.zeros(len(self.counts) + 1, np.int32)
        np.cumsum(self.counts, out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), self._names(self.queue_ids))

    def includes_any(self, queue_ids: Container[int]) -> BoolArray:
        """Which messages were routed to one of these queues."""
        selected = [number for number in self.queues if number in queue_ids]
        message_indexes = np.repeat(np.arange(len(self.counts)), self.counts)
        mask = np.zeros(len(self.counts), bool)
        mask[message_indexes[np.isin(self.queue_ids, selected)]] = True
        return mask

    def _names(self, queue_ids: IntArray) -> pa.Array:
        def name(number: int) -> str | None:
            return self.queues[number].name if number in self.queues else None

        return map_to_text(queue_ids, name)


@cache
def _event_queries(kinds: ColumnElement[bool]) -> tuple[Query, Query]:
    """The weights, and the queues and message ids, of events about a range of messages."""
    conditions = [
        kinds,
        _events.last_id >= parameter("first_message"),
        _events.first_id < parameter("end_message"),
    ]
    rows = (
        select(_events.queue_id, _events["count"], _events.ids)
        .where(_events.id >= parameter("low"), _events.id < parameter("stop"), *conditions)
        .order_by(_events.id)
        .subquery()
        .c
    )
    return (
        weight_query(schema.events, _events["count"] * literal_column("8"), conditions),
        Query(
            select(pack_numbers(rows.queue_id), pack_numbers(rows["count"]), pack_blobs(rows.ids))
        ),
    )


class RoutedQueuesReader:
    """Looks up one range of messages after another, in id order, of a request up to `to_id`."""

    def __init__(self, database: Database, to_id: int) -> None:
        self._database = database
        self._to_id = to_id
        self._window = (0, 0)
        self._window_ids = WINDOW_IDS
        self._ids = self._queue_ids = _NO_IDS
        self._queues: dict[int, QueueRow] = {}

    def lookup(self, message_ids: IntArray) -> RoutedQueues:
        """The queues of these messages, which are in id order; each one's oldest queue first."""
        if not len(message_ids):
            return RoutedQueues(_NO_IDS, _NO_IDS, self._queues)
        if not (self._window[0] <= message_ids[0] and message_ids[-1] < self._window[1]):
            self._move_window(int(message_ids[0]), int(message_ids[-1]) + 1)
        starts = np.searchsorted(self._ids, message_ids, "left")
        counts = np.searchsorted(self._ids, message_ids, "right") - starts
        shifts = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        queue_ids = self._queue_ids[np.arange(len(shifts)) + shifts]
        return RoutedQueues(counts, queue_ids, self._queues)

    def _move_window(self, low: int, high: int) -> None:
        hidden = set(queues_without_history(self._database))
        queues = read_queues(self._database)
        self._queues = {number: queue for number, queue in queues.items() if number not in hidden}
        if not self._read(low, max(high, min(low + self._window_ids, self._to_id)), high):
            self._window_ids = 0  # each message was routed to many queues
            self._read(low, high, high)

    def _read(self, low: int, high: int, needed: int) -> bool:
        """Look up [low, high); false if that is too much and [low, needed) is enough."""
        ids, queue_ids, total = [_NO_IDS], [_NO_IDS], 0
        for some_ids, some_queues in self._pairs(low, high):
            mask = (some_ids >= low) & (some_ids < high)
            mask &= np.isin(some_queues, list(self._queues))
            ids.append(some_ids[mask])
            queue_ids.append(some_queues[mask])
            total += len(ids[-1])
            if total > WINDOW_PAIRS and high > needed:
                return False
        all_ids, all_queues = np.concatenate(ids), np.concatenate(queue_ids)
        order = np.lexsort((all_queues, all_ids))
        all_ids, all_queues = all_ids[order], all_queues[order]
        repeated = (all_ids[1:] == all_ids[:-1]) & (all_queues[1:] == all_queues[:-1])
        distinct = np.append(True, ~repeated) if len(all_ids) else np.zeros(0, bool)
        self._ids, self._queue_ids = all_ids[distinct], all_queues[distinct]
        self._window = (low, high)
        return True

    def event_span(self, low: int, high: int) -> tuple[int, int]:
        """The ids of events in which those of the commits of these messages are."""
        first = self._event_of(low - COMMIT_IDS) - COMMIT_ROWS
        return first, self._event_of(high) + COMMIT_ROWS

    def _pairs(self, low: int, high: int) -> Iterator[tuple[IntArray, IntArray]]:
        """Message ids and the queues that received or held them; some are out of the range."""
        yield from self._rows(_ENQUEUED, self.event_span(low, high), (low, high))
        if low < self._complete_from() + COMMIT_IDS:
            yield from self._rows(_SNAPSHOT, (0, _END), (low, high))

    def _rows(
        self, kinds: ColumnElement[bool], event_span: tuple[int, int], span: tuple[int, int]
    ) -> Iterator[tuple[IntArray, IntArray]]:
        weights, rows = _event_queries(kinds)
        messages = {"first_message": span[0], "end_message": span[1]}
        for low, stop in chunk_ranges(self._database, weights, event_span, **messages):
            row = self._database.row(rows, low=low, stop=stop, **messages)
            yield unpack_ids(row[2]), np.repeat(parse_numbers(row[0]), parse_numbers(row[1]))

    def _event_of(self, message_id: int) -> int:
        """About the first `enqueued` event of this message or of later ones, by binary search."""
        first = self._database.number(_FIRST_EVENT)
        last = self._database.number(_LAST_EVENT)
        low, high = first or 0, (last or 0) + 1
        while low < high:
            middle = (low + high) // 2
            event = self._database.row(_NEXT_ENQUEUED, low=middle, stop=high)
            if event and event[1] < message_id:
                low = int(event[0]) + 1
            else:
                high = middle
        return low

    def _complete_from(self) -> int:
        """The first message whose events retention has not trimmed.

        Retention keeps the events of older messages that queues need for recovery; `published` is
        never one of them.
        """
        first_id = self._database.number(_FIRST_PUBLISHED)
        return _END if first_id is None else first_id
