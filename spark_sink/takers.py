"""Which queues took each message: the columns `queue` and `queues` of the table `messages`.

What a queue took is in `events`, in the commit of the message's content, so the answer for a
message is final as soon as the message can be read, and no later event changes it. Numbers of
messages and of events both grow from commit to commit. So the events of a range of messages are
found by halving, and ranges are read one after another: the cost is in proportion to what is read.

Where retention has trimmed the events of messages that are still alive, the snapshots of their
queues tell. Queues without history are not named. Belongs to the reader's thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leveret.model.history import EventKind
from spark_sink.chunks import bounded
from spark_sink.database import Database
from spark_sink.names import QueueName, queue_names, queues_without_history
from spark_sink.packed import Ints, looked_up, number_sql, numbers

WINDOW_IDS = 1 << 18
"""So many messages are looked up at once, unless many queues took each of them."""
WINDOW_PAIRS = 1 << 21
# Within a commit rows stand in no order that one could rely on. One that reaches further than
# both of these is not looked for: so many messages in it, and so many rows.
COMMIT_IDS = 1 << 16
COMMIT_ROWS = 1 << 13
_END = 2**62
_TOOK = f"kind IN ({int(EventKind.ENQUEUED)}, {int(EventKind.ENQUEUED_TRANSIENT)})"
_HELD = f"kind = {int(EventKind.SNAPSHOT)}"
_NONE: Ints = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Taken:
    """For some messages: how many queues took each, and their numbers, one after another."""

    counts: Ints
    queue_ids: Ints
    queues: dict[int, QueueName]

    def firsts(self) -> Ints:
        """The number of the first queue of each message; 0 where none took it."""
        found = np.zeros(len(self.counts), np.int64)
        starts = np.cumsum(self.counts) - self.counts
        found[self.counts > 0] = self.queue_ids[starts[self.counts > 0]]
        return found

    def first_names(self) -> pa.Array:
        return self._names(self.firsts())

    def all_names(self) -> pa.Array:
        offsets = np.zeros(len(self.counts) + 1, np.int32)
        np.cumsum(self.counts, out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), self._names(self.queue_ids))

    def by_any_of(self, chosen: Container[int]) -> npt.NDArray[np.bool_]:
        """Which messages one of these queues took."""
        wanted = [number for number in self.queues if number in chosen]
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        mask = np.zeros(len(self.counts), bool)
        mask[owners[np.isin(self.queue_ids, wanted)]] = True
        return mask

    def _names(self, queue_ids: Ints) -> pa.Array:
        def name(number: int) -> str | None:
            return self.queues[number].name if number in self.queues else None

        return looked_up(queue_ids, name)


class Takers:
    """Asked for one range after another, in the order of their ids, of a request up to `to_id`."""

    def __init__(self, database: Database, to_id: int) -> None:
        self._database = database
        self._to_id = to_id
        self._window = (0, 0)
        self._step = WINDOW_IDS
        self._ids = self._queue_ids = _NONE
        self._queues: dict[int, QueueName] = {}

    def of(self, ids: Ints) -> Taken:
        """Of these messages, in the order of their ids: the oldest queue of each comes first."""
        if not len(ids):
            return Taken(_NONE, _NONE, self._queues)
        if not (self._window[0] <= ids[0] and ids[-1] < self._window[1]):
            self._move(int(ids[0]), int(ids[-1]) + 1)
        starts = np.searchsorted(self._ids, ids, "left")
        counts = np.searchsorted(self._ids, ids, "right") - starts
        places = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return Taken(counts, self._queue_ids[np.arange(len(places)) + places], self._queues)

    def _move(self, low: int, high: int) -> None:
        hidden = set(queues_without_history(self._database))
        names = queue_names(self._database)
        self._queues = {number: one for number, one in names.items() if number not in hidden}
        if not self._read(low, max(high, min(low + self._step, self._to_id)), high):
            self._step = 0  # many queues take each message here
            self._read(low, high, high)

    def _read(self, low: int, high: int, needed: int) -> bool:
        """Look up [low, high); false when it is too much and less is needed."""
        ids, queue_ids, total = [_NONE], [_NONE], 0
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
        again = (all_ids[1:] == all_ids[:-1]) & (all_queues[1:] == all_queues[:-1])
        fresh = np.append(True, ~again) if len(all_ids) else np.zeros(0, bool)
        self._ids, self._queue_ids = all_ids[fresh], all_queues[fresh]
        self._window = (low, high)
        return True

    def _pairs(self, low: int, high: int) -> Iterator[tuple[Ints, Ints]]:
        """Messages and the queues that took or held them; some outside of the range."""
        first = self._event_of(low - COMMIT_IDS) - COMMIT_ROWS
        last = self._event_of(high) + COMMIT_ROWS
        yield from self._rows(_TOOK, (first, last), (low, high))
        if low < self._whole_from() + COMMIT_IDS:
            yield from self._rows(_HELD, (0, _END), (low, high))

    def _rows(
        self, kinds: str, events: tuple[int, int], span: tuple[int, int]
    ) -> Iterator[tuple[Ints, Ints]]:
        where = f"AND {kinds} AND last_id >= ? AND first_id < ?"
        for bounds in bounded(self._database, "events", "count * 8", events, (where, [*span])):
            row = self._database.row(
                f"SELECT {number_sql('queue_id')}, {number_sql('count')},"  # noqa: S608
                " group_concat(cast(ids as text), '') FROM (SELECT queue_id, count, ids"
                f" FROM events WHERE id >= ? AND id < ? {where} ORDER BY id)",
                [*bounds, *span],
            )
            ids = np.frombuffer(row[2] or b"", "<u8").astype(np.int64)
            yield ids, np.repeat(numbers(row[0]), numbers(row[1]))

    def _event_of(self, message: int) -> int:
        """The first event, about, of queues taking this message or later ones."""
        first = self._database.number("SELECT min(id) FROM events")
        last = self._database.number("SELECT max(id) FROM events")
        low, high = first or 0, (last or 0) + 1
        while low < high:
            middle = (low + high) // 2
            found = self._database.row(
                f"SELECT id, first_id FROM events WHERE id >= ? AND id < ? AND {_TOOK}"  # noqa: S608
                " ORDER BY id LIMIT 1",
                [middle, high],
            )
            if found and found[1] < message:
                low = int(found[0]) + 1
            else:
                high = middle
        return low

    def _whole_from(self) -> int:
        """Retention has trimmed no events of messages from this one on: what it leaves of older
        ones is what queues need, and no queue needs to know what was published."""
        found = self._database.number(
            "SELECT first_id FROM events WHERE queue_id = 0"  # noqa: S608
            f" AND kind = {int(EventKind.PUBLISHED)} ORDER BY id LIMIT 1"
        )
        return _END if found is None else found
