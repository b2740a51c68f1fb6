"""Retention: trims history in slices small enough not to delay commits.

Used on the writer thread only: `step` runs one short transaction and tells whether there is more
to do. A crash between steps leaves less history, never a live message without content: ids above
`RetentionRequest.upto` are not touched, and messages that were live at the request stay.

Content is trimmed by packs. A pack without live messages is deleted. One of whose messages fewer
than half are live is written again with only these; any other waits until more of them are settled.

Passes, in order:
1. the oldest content, while it is older than the limit or the file is larger than allowed;
2. content that was settled after pass 1 had gone past it;
3. content that history does not keep: a part of the table per run, continuing where the last run
   stopped;
4. parts of large bodies that belong to no message;
5. events older than what pass 1 removed, unless the fold of a queue still needs them;
6. origins and deleted queues without references; then free pages go back to the file system.

Pass 1 also removes content while the volume has less free space than the request demands; free
pages of the database count as free, because new rows use them first. Pass 5 then gives them back,
because other files cannot use them.

Passes 1, 2 and 5 delete rows that readers of the history may not have seen yet: `trims` tells them.

Damaged pages are skipped: their rows stay until the next start repairs the database.
"""

import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from math import ceil
from typing import Any, Final, NamedTuple

from leveret.model.history import Keep
from leveret.model.message import PART_BYTES
from leveret.model.store import DatabaseSize, RetentionRequest, Usage
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage import statements
from leveret.queues.storage.journal_replay import is_ascending, slice_between
from leveret.queues.storage.packs import DamagedPack, Pack, PackRow
from leveret.queues.storage.reader import is_damage
from leveret.queues.storage.transaction import Transactor, json_ids
from leveret.queues.storage.trims import EVENTS_KEY, MESSAGES_KEY, Trims

SLICE: Final = 2_000
PACKS_PER_STEP: Final = 512
BYTES_PER_STEP: Final = 2 * 1024 * 1024
REWRITES_PER_STEP: Final = 16
MAX_EMPTY_STEPS: Final = 50
PAGES_PER_STEP: Final = 512
PARTS_PER_STEP: Final = 8
STEPS_PER_CHECKPOINT: Final = 4
_FAR_FUTURE: Final = 1 << 62


class PackToTrim(NamedTuple):
    """What retention looks at before it reads a whole pack."""

    id: int
    last_id: int
    message_count: int
    first_ms: int
    last_ms: int
    keep: int
    has_bodies: int
    bytes: int

    @property
    def is_unkept(self) -> bool:
        """Whether history does not keep all of it."""
        return self.keep == Keep.NOTHING or (self.keep == Keep.METADATA and bool(self.has_bodies))


class TrimmedPack(NamedTuple):
    """A pack that is deleted; `row` takes its place, if anything is left of it.

    `removed`: how many messages, or bodies, are gone. `last_visible`: the highest removed id that
    readers of the history could see.
    """

    id: int
    row: PackRow | None
    removed: int
    last_visible: int | None


class RetentionRun:
    """One run over the database; `usage` is valid once `step` has returned False."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        transactor: Transactor,
        request: RetentionRequest,
        free_bytes: Callable[[], int],
    ) -> None:
        """`free_bytes`: the free space of the volume."""
        self._execute = connection.execute
        self._script = connection.executescript
        self._transactor = transactor
        self._request = request
        self._free_bytes = free_bytes
        self._live = [ids for ids in map(_in_order, request.live) if ids]
        self._max_bytes = request.max_bytes + request.live_bytes
        self._cut_ms = request.before_ms
        self._removed = 0
        self._steps = self._all_steps()
        self.usage = Usage()

    @property
    def is_urgent(self) -> bool:
        """Whether the volume has less free space than the request demands."""
        return self._free_bytes() < self._request.min_free_bytes

    def step(self) -> bool:
        return next(self._steps, None) is not None

    def _all_steps(self) -> Iterator[bool]:
        for run_pass in (
            self._oldest,
            self._settled_late,
            self._unkept,
            self._unused_parts,
            self._events,
            self._unreferenced,
        ):
            yield from run_pass()
        self.usage = measure(self._execute, self._removed)

    def _run(self, *work: tuple[str, tuple[object, ...]]) -> None:
        """A transaction of deletes that readers of the history need not know of."""
        self._begin()
        try:
            removed = sum(self._execute(sql, values).rowcount for sql, values in work)
        except sqlite3.DatabaseError as error:
            self._skip_damage(error)
            return
        self._execute(statements.COMMIT)
        self._removed += removed

    def _note_trimmed(self, key: str, last: int | None) -> None:
        """Note under `key` the highest deleted id that readers may miss."""
        if last is not None:
            row = self._execute(compiled.META_VALUE, (key,)).fetchone()
            trims = Trims.from_json(row[0] if row else None).after_deleting(last)
            self._transactor.set_meta(key, trims.to_json())

    def _trim_packs(
        self,
        packs: Sequence[PackToTrim],
        trim: Callable[[PackToTrim, Sequence[int]], TrimmedPack | None],
        *,
        floor: int | None = None,
    ) -> None:
        """A transaction that deletes packs, or writes them again without some of their messages.

        `trim` decides about a pack and its live messages. `floor`: history is complete only above
        this id from now on.
        """
        live = self._live_between(packs[0].id, packs[-1].last_id) if packs else []
        self._begin()
        if floor is not None:
            self._transactor.set_meta("history_floor", str(floor))
        try:
            trimmed = [
                result
                for pack in packs
                if (result := trim(pack, _between(live, pack.id, pack.last_id))) is not None
            ]
            if trimmed:
                self._execute(compiled.DELETE_PACKS, (json_ids(one.id for one in trimmed),))
            for one in trimmed:
                if one.row is not None:
                    self._execute(compiled.INSERT_PACKS, one.row)
        except sqlite3.DatabaseError as error:
            self._skip_damage(error)
            return
        lost = [one.last_visible for one in trimmed if one.last_visible is not None]
        self._note_trimmed(MESSAGES_KEY, max(lost, default=None))
        self._execute(statements.COMMIT)
        self._removed += sum(one.removed for one in trimmed)

    def _remove_settled(self, pack: PackToTrim, live: Sequence[int]) -> TrimmedPack | None:
        """Without the messages that no queue holds; None: too many are live."""
        visible = pack.keep > Keep.NOTHING
        if not live:
            return TrimmedPack(pack.id, None, pack.message_count, pack.last_id if visible else None)
        if len(live) * 2 > pack.message_count:
            return None
        whole = self._read_pack(pack.id)
        if whole is None:
            return None
        keep = set(live)
        settled = [message_id for message_id in whole.ids if message_id not in keep]
        row = whole.without(lambda message_id: message_id not in keep)
        last_visible = settled[-1] if visible and settled else None
        return TrimmedPack(pack.id, row, len(settled), last_visible)

    def _remove_unkept(self, pack: PackToTrim, live: Sequence[int]) -> TrimmedPack | None:
        """Without the messages, or only their bodies, that history does not keep."""
        if pack.keep == Keep.NOTHING:
            return self._remove_settled(pack, live)
        if pack.keep == Keep.FULL or not pack.has_bodies or len(live) * 2 > pack.message_count:
            return None
        whole = self._read_pack(pack.id)
        if whole is None:
            return None
        keep = set(live)
        row = whole.without_bodies(lambda message_id: message_id in keep)
        return TrimmedPack(pack.id, row, pack.message_count - len(live), None)

    def _read_pack(self, pack_id: int) -> Pack | None:
        """The pack, or None if it is damaged: then it stays as it is."""
        row = self._execute(compiled.READ_PACK, (pack_id,)).fetchone()
        try:
            return None if row is None else Pack(PackRow(*row), self._maybe_data_in_parts(row))
        except DamagedPack:
            return None

    def _maybe_data_in_parts(self, values: Sequence[Any]) -> bytes | None:
        row = PackRow(*values)
        if row.data is not None or row.first_part is None:
            return None
        parts = range(row.first_part, row.first_part + row.parts)
        found = [self._execute(compiled.LOAD_PART, (part,)).fetchone() for part in parts]
        # Zeroes for a part that is lost, so that the others are in their places.
        return b"".join(data[0] if data else bytes(PART_BYTES) for data in found)

    def _trim_events(self, after: int, last: int) -> None:
        self._begin()
        try:
            values = (after, last, self._cut_ms)
            deleted = self._execute(compiled.DELETE_EVENTS, values).fetchall()
        except sqlite3.DatabaseError as error:
            self._skip_damage(error)
            return
        visible = [event_id for event_id, was_visible in deleted if was_visible]
        self._note_trimmed(EVENTS_KEY, max(visible, default=None))
        self._execute(statements.COMMIT)
        self._removed += len(deleted)

    def _begin(self) -> None:
        self._execute(statements.BEGIN)
        self._transactor.set_meta("last_message_id", str(self._transactor.last_message))

    def _skip_damage(self, error: sqlite3.DatabaseError) -> None:
        """Leave damaged rows to the next start; raise any other error."""
        if not is_damage(error):
            raise error
        self._transactor.roll_back()
        self._transactor.note_damage()

    def _row(self, sql: str, *values: object) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._execute(sql, values).fetchone()
        return row

    def _live_between(self, first: int, last: int) -> list[int]:
        """The live messages of these ids, ascending."""
        parts = [slice_between(ids, first, last) for ids in self._live]
        return sorted(set(chain.from_iterable(parts)))

    def _next_packs(self, after: int) -> list[PackToTrim]:
        """The next packs whose first message is above this id."""
        upto = self._request.upto
        while after <= upto:
            try:
                values = (after, upto, PACKS_PER_STEP)
                found = self._execute(compiled.PACKS_TO_TRIM, values).fetchall()
            except sqlite3.DatabaseError as error:
                self._skip_damage(error)
                after += SLICE
                continue
            packs = [PackToTrim(*row) for row in found]
            sizes = list(accumulate(pack.bytes for pack in packs))
            return packs[: max(1, bisect_right(sizes, BYTES_PER_STEP))]
        return []

    def _oldest(self) -> Iterator[bool]:
        while packs := self._next_packs(self._transactor.trimmed_to):
            too_big = self._is_too_big()
            before = _FAR_FUTURE if too_big else self._request.before_ms
            newer = next((at for at, pack in enumerate(packs) if pack.last_ms >= before), None)
            old = packs[:newer]
            if not old:
                return
            last = old[-1].last_id
            self._trim_packs(old, self._remove_settled, floor=last)
            self._transactor.trimmed_to = last
            if too_big:
                self._cut_ms = max(self._cut_ms, *(pack.last_ms + 1 for pack in old))
            yield True
            yield from self._unused_parts()

    def _is_too_big(self) -> bool:
        size = database_size(self._execute)
        if size.used > self._max_bytes:
            return True
        return self._free_bytes() + size.free < self._request.min_free_bytes

    def _settled_late(self) -> Iterator[bool]:
        late, self._transactor.settled_late = self._transactor.settled_late, array("Q")
        ordered = sorted(late)
        for start in range(0, len(ordered), SLICE):
            part = json_ids(ordered[start : start + SLICE])
            try:
                found = self._execute(compiled.PACKS_OF_MESSAGES, (part,)).fetchall()
            except sqlite3.DatabaseError as error:
                self._skip_damage(error)
                continue
            packs = sorted(PackToTrim(*row) for row in found)
            for first in range(0, len(packs), REWRITES_PER_STEP):
                self._trim_packs(packs[first : first + REWRITES_PER_STEP], self._remove_settled)
                yield True

    def _unkept(self) -> Iterator[bool]:
        """Stops after a number of steps in which there was nothing to remove."""
        transactor, fruitless = self._transactor, 0
        while fruitless < MAX_EMPTY_STEPS:
            packs = self._next_packs(transactor.unkept_scanned_to)
            if not packs:
                transactor.unkept_scanned_to = 0
                return
            removed_before = self._removed
            unkept = [pack for pack in packs if pack.is_unkept]
            for first in range(0, len(unkept), REWRITES_PER_STEP):
                self._trim_packs(unkept[first : first + REWRITES_PER_STEP], self._remove_unkept)
                yield True
            transactor.unkept_scanned_to = packs[-1].last_id
            fruitless += self._removed == removed_before
            yield True

    def _unused_parts(self) -> Iterator[bool]:
        """Parts of large bodies whose messages are gone, or were never stored."""
        while self._transactor.has_parts:
            waiting = json_ids(self._transactor.unclaimed_parts)
            unused = self._execute(compiled.UNUSED_PARTS, (waiting, PARTS_PER_STEP)).fetchall()
            if not unused:
                return
            self._run((compiled.DELETE_PARTS, (json_ids(part for (part,) in unused),)))
            yield True

    def _events(self) -> Iterator[bool]:
        after = 0
        while True:
            # The newest event stays, so that its id is never used again.
            try:
                last, oldest = self._row(
                    compiled.EVENT_SLICE, after, self._transactor.last_event, SLICE
                )
            except sqlite3.DatabaseError as error:
                self._skip_damage(error)
                return
            if last is None or oldest >= self._cut_ms:
                return
            self._trim_events(after, last)
            after = last
            yield True

    def _unreferenced(self) -> Iterator[bool]:
        self._run(
            (compiled.DELETE_ORIGINS, (self._cut_ms,)),
            (compiled.DELETE_QUEUES, (self._cut_ms,)),
        )
        yield True
        yield from self._give_back_pages()

    def _give_back_pages(self) -> Iterator[bool]:
        """Give free pages back to the file system: all that the volume lacks, or a surplus."""
        pages, free, page_size = self._row(compiled.PAGE_COUNTS)
        missing = max(0, self._request.min_free_bytes - self._free_bytes())
        keep = max(0, free - ceil(missing / page_size))
        steps = 0
        while free > keep or free >= max(2 * PAGES_PER_STEP, pages // 4):
            count = min(PAGES_PER_STEP, free - keep) if free > keep else PAGES_PER_STEP
            # Each freed page is one step of this statement, and `execute` runs only the first.
            try:
                self._script(statements.FREE_PAGES.format(pages=count))
            except sqlite3.DatabaseError as error:
                self._skip_damage(error)
                return
            steps += 1
            # The moved pages are in the write-ahead log, and the file shrinks with the checkpoint.
            if steps % STEPS_PER_CHECKPOINT == 0 and not self._checkpoint():
                return
            yield True
            pages, free, _ = self._row(compiled.PAGE_COUNTS)
        if steps:
            self._checkpoint()

    def _checkpoint(self) -> bool:
        """Whether all of the write-ahead log is in the database: no reader needs it any more."""
        _, frames, copied = self._row(statements.CHECKPOINT)
        return bool(frames == copied)


def database_size(execute: Callable[..., sqlite3.Cursor]) -> DatabaseSize:
    pages, free, size = execute(compiled.PAGE_COUNTS).fetchone()
    return DatabaseSize((pages - free) * size, free * size)


def measure(execute: Callable[..., sqlite3.Cursor], removed: int = 0) -> Usage:
    try:
        first, last, first_ms, last_ms = execute(compiled.CONTENT_RANGE).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        first = last = first_ms = last_ms = 0  # the oldest or newest message is unreadable
    return Usage(database_size(execute).used, first, last, first_ms, last_ms, removed)


def _between(ids: Sequence[int], first: int, last: int) -> Sequence[int]:
    return ids[bisect_left(ids, first) : bisect_right(ids, last)]


def _in_order(ids: "array[int]") -> "array[int]":
    return ids if is_ascending(ids) else array("Q", sorted(ids))
