"""Retention: trims history in slices small enough not to delay commits.

Used on the writer thread only: `step` runs one short transaction and tells whether there is more
to do. A crash between steps leaves less history, never a live message without content: ids above
`RetentionRequest.upto` are not touched, and messages that were live at the request stay.

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

Passes 1, 2 and 4 delete rows that readers of the history may not have seen yet: `trims` tells them.

Damaged pages are skipped: their rows stay until the next start repairs the database.
"""

import sqlite3
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from math import ceil
from typing import Any, Final

from leveret.model.store import DatabaseSize, RetentionRequest, Usage
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage import statements
from leveret.queues.storage.journal_replay import is_ascending, slice_between
from leveret.queues.storage.reader import is_damage
from leveret.queues.storage.transaction import Transactor, json_ids
from leveret.queues.storage.trims import EVENTS_KEY, MESSAGES_KEY, Trims

SLICE: Final = 2_000
MAX_EMPTY_SLICES: Final = 50
PAGES_PER_STEP: Final = 512
PARTS_PER_STEP: Final = 8
STEPS_PER_CHECKPOINT: Final = 4
_FAR_FUTURE: Final = 1 << 62


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

    def _trim(
        self, key: str, sql: str, values: tuple[object, ...], *, floor: int | None = None
    ) -> None:
        """A transaction that deletes rows, and notes under `key` the highest id readers may miss.

        `floor`: history is complete only above this id from now on.
        """
        self._begin()
        if floor is not None:
            self._transactor.set_meta("history_floor", str(floor))
        try:
            deleted = self._execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            self._skip_damage(error)
            return
        last = max((row_id for row_id, was_visible in deleted if was_visible), default=None)
        if last is not None:
            row = self._execute(compiled.META_VALUE, (key,)).fetchone()
            trims = Trims.from_json(row[0] if row else None).after_deleting(last)
            self._transactor.set_meta(key, trims.to_json())
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

    def _live_between(self, first: int, last: int) -> str:
        return json_ids(chain.from_iterable(slice_between(ids, first, last) for ids in self._live))

    def _oldest(self) -> Iterator[bool]:
        while True:
            span = self._next_span(self._transactor.trimmed_to)
            if span is None:
                return
            first, last = span
            try:
                oldest, newest = self._row(compiled.SLICE_TIMES, first, last)
            except sqlite3.DatabaseError as error:
                self._skip_damage(error)
                self._transactor.trimmed_to = last
                continue
            too_big = self._is_too_big()
            if not too_big and oldest >= self._request.before_ms:
                return
            before = _FAR_FUTURE if too_big else self._request.before_ms
            drop = (first, last, before, self._live_between(first, last))
            is_complete = newest < before
            floor = last if is_complete else None
            self._trim(MESSAGES_KEY, compiled.DELETE_SLICE, drop, floor=floor)
            if not is_complete:
                return
            self._transactor.trimmed_to = last
            self._cut_ms = max(self._cut_ms, newest + 1 if too_big else 0)
            yield True
            yield from self._unused_parts()

    def _is_too_big(self) -> bool:
        size = database_size(self._execute)
        if size.used > self._max_bytes:
            return True
        return self._free_bytes() + size.free < self._request.min_free_bytes

    def _next_span(self, after: int) -> tuple[int, int] | None:
        upto = self._request.upto
        while after <= upto:
            try:
                first = self._row(compiled.NEXT_MESSAGE, after, upto)[0]
            except sqlite3.DatabaseError as error:
                self._skip_damage(error)
                after += SLICE
                continue
            return None if first is None else (first, min(first + SLICE - 1, upto))
        return None

    def _settled_late(self) -> Iterator[bool]:
        late, self._transactor.settled_late = self._transactor.settled_late, array("Q")
        for start in range(0, len(late), SLICE):
            part = sorted(late[start : start + SLICE])
            live = set(chain.from_iterable(
                slice_between(ids, part[0], part[-1]) for ids in self._live
            ))  # fmt: skip
            settled = [message_id for message_id in part if message_id not in live]
            if settled:
                self._trim(MESSAGES_KEY, compiled.DELETE_SETTLED_LATE, (json_ids(settled),))
            yield True

    def _unkept(self) -> Iterator[bool]:
        """Stops after a number of slices in which there was nothing to remove."""
        transactor, fruitless = self._transactor, 0
        while fruitless < MAX_EMPTY_SLICES:
            span = self._next_span(transactor.unkept_scanned_to)
            if span is None:
                transactor.unkept_scanned_to = 0
                return
            first, last = span
            live, removed_before = self._live_between(first, last), self._removed
            self._run(
                (compiled.DELETE_UNKEPT, (first, last, live)),
                (compiled.STRIP_SLICE, (first, last, live)),
            )
            transactor.unkept_scanned_to = last
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
            self._trim(EVENTS_KEY, compiled.DELETE_EVENTS, (after, last, self._cut_ms))
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


def _in_order(ids: "array[int]") -> "array[int]":
    return ids if is_ascending(ids) else array("Q", sorted(ids))
