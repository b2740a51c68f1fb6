"""Retention: trim history in slices small enough not to hold up commits.

Used on the writer thread only: `step` runs one short transaction and says whether there is more.
A crash between steps leaves less history, never a live message without content: ids above
`Retention.upto` are not looked at, and what was alive when the sweep was asked for stays.

Passes, in order:
1. oldest content first, while it is older than asked or the file is larger than allowed;
2. content settled after pass 1 had gone by it;
3. a part of the table further on each time round: content that history never wanted;
4. events older than what pass 1 removed, unless a queue's fold still needs them;
5. origins and deleted queues nobody refers to, and free pages back to the file system.
"""

import sqlite3
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from leveret.model.store import Retention, Usage
from queues.storage import statements
from queues.storage.fold import is_ascending, slice_between
from queues.storage.transaction import Transactor, json_ids

SLICE = 2_000
SLICES_IN_VAIN = 50
PAGES_PER_STEP = 512
_FAR_FUTURE = 1 << 62


class Sweeper:
    """One sweep; `usage` is right when `step` has answered False."""

    def __init__(
        self, connection: sqlite3.Connection, transactor: Transactor, retention: Retention
    ) -> None:
        self._execute = connection.execute
        self._script = connection.executescript
        self._transactor = transactor
        self._retention = retention
        self._live = [ids for ids in map(_in_order, retention.live) if ids]
        self._limit = retention.max_bytes + retention.live_bytes
        self._cut_ms = retention.before_ms
        self._removed = 0
        self._steps = self._all_steps()
        self.usage = Usage()

    def step(self) -> bool:
        return next(self._steps, None) is not None

    def _all_steps(self) -> Iterator[bool]:
        for passing in (self._oldest, self._late, self._unkept, self._events, self._rest):
            yield from passing()
        self.usage = measure(self._execute, self._removed)

    def _run(self, *work: tuple[str, tuple[object, ...]], floor: int | None = None) -> None:
        """A transaction of deletes. `floor`: history is whole only above this id from now on."""
        transactor = self._transactor
        self._execute(statements.BEGIN)
        transactor.set_meta("last_message_id", str(transactor.last_message))
        if floor is not None:
            transactor.set_meta("history_floor", str(floor))
        removed = sum(self._execute(sql, values).rowcount for sql, values in work)
        self._execute(statements.COMMIT)
        self._removed += removed

    def _one(self, sql: str, *values: object) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._execute(sql, values).fetchone()
        return row

    def _live_between(self, first: int, last: int) -> str:
        return json_ids(chain.from_iterable(slice_between(ids, first, last) for ids in self._live))

    def _oldest(self) -> Iterator[bool]:
        while True:
            span = self._next_span(self._transactor.swept_to)
            if span is None:
                return
            first, last = span
            oldest, newest = self._one(statements.SLICE_TIMES, first, last)
            too_big = used_bytes(self._execute) > self._limit
            if not too_big and oldest >= self._retention.before_ms:
                return
            before = _FAR_FUTURE if too_big else self._retention.before_ms
            drop = (first, last, before, self._live_between(first, last))
            is_whole = newest < before
            self._run((statements.DROP_SLICE, drop), floor=last if is_whole else None)
            if not is_whole:
                return
            self._transactor.swept_to = last
            self._cut_ms = max(self._cut_ms, newest + 1 if too_big else 0)
            yield True

    def _next_span(self, after: int) -> tuple[int, int] | None:
        upto = self._retention.upto
        first = self._one(statements.NEXT_MESSAGE, after, upto)[0]
        return None if first is None else (first, min(first + SLICE - 1, upto))

    def _late(self) -> Iterator[bool]:
        late, self._transactor.late = self._transactor.late, array("Q")
        for start in range(0, len(late), SLICE):
            part = sorted(late[start : start + SLICE])
            alive = set(chain.from_iterable(
                slice_between(ids, part[0], part[-1]) for ids in self._live
            ))  # fmt: skip
            gone = [message_id for message_id in part if message_id not in alive]
            if gone:
                self._run((statements.DROP_LATE, (json_ids(gone),)))
            yield True

    def _unkept(self) -> Iterator[bool]:
        """Goes on while there is something to remove; looks only so far in vain."""
        transactor, in_vain = self._transactor, 0
        while in_vain < SLICES_IN_VAIN:
            span = self._next_span(transactor.unkept_to)
            if span is None:
                transactor.unkept_to = 0
                return
            first, last = span
            live, before = self._live_between(first, last), self._removed
            self._run(
                (statements.DROP_UNKEPT, (first, last, live)),
                (statements.STRIP_SLICE, (first, last, live)),
            )
            transactor.unkept_to = last
            in_vain += self._removed == before
            yield True

    def _events(self) -> Iterator[bool]:
        after = 0
        while True:
            # The newest event stays, so that its number is never used again.
            last, oldest = self._one(
                statements.EVENT_SLICE, after, self._transactor.last_event, SLICE
            )
            if last is None or oldest >= self._cut_ms:
                return
            self._run((statements.DROP_EVENTS, (after, last, self._cut_ms)))
            after = last
            yield True

    def _rest(self) -> Iterator[bool]:
        self._run(
            (statements.DROP_ORIGINS, (self._cut_ms,)),
            (statements.DROP_QUEUES, (self._cut_ms,)),
        )
        yield True
        while True:
            pages, free, _ = self._one(statements.PAGE_COUNTS)
            if free < max(2 * PAGES_PER_STEP, pages // 4):
                return
            # Every page is one step of this statement, and `execute` takes only the first one.
            self._script(statements.GIVE_BACK_PAGES.format(pages=PAGES_PER_STEP))
            yield True


def used_bytes(execute: Callable[..., sqlite3.Cursor]) -> int:
    pages, free, size = execute(statements.PAGE_COUNTS).fetchone()
    return int((pages - free) * size)


def measure(execute: Callable[..., sqlite3.Cursor], removed: int = 0) -> Usage:
    first, last, first_ms, last_ms = execute(statements.CONTENT_RANGE).fetchone()
    return Usage(used_bytes(execute), first, last, first_ms, last_ms, removed)


def _in_order(ids: "array[int]") -> "array[int]":
    return ids if is_ascending(ids) else array("Q", sorted(ids))
