"""Reads content back from the database, ahead of the consumers that will need it.

Uses its own read-only connection on aiosqlite's thread; each query sees everything committed before
it began. A query returns one row with all packs (see `core_statements.LOAD`), which is split into
runs of messages on the loop thread.
A message that does not match its checksum is an `UnreadableMessage`: it is reported, never returned
as content. An error that says nothing about the data is raised: the caller tries again.
"""

import sqlite3
from asyncio import Future, ensure_future, shield, to_thread, wait
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TypeGuard

import aiosqlite
import orjson

from leveret.model.checksum import extend
from leveret.model.message import PART_BYTES, LargeBody
from leveret.model.store import (
    LoadedRun,
    LoadResult,
    StoreError,
    UnreadableMessage,
    split_runs,
)
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage.journal_replay import is_ascending
from leveret.queues.storage.packs import NO_SUCH_MESSAGE, DamagedPack, Pack, PackRow
from leveret.queues.storage.read_only import open_read_only
from leveret.queues.storage.statements import LOAD_BLOBS, LOAD_NUMBERS
from leveret.queues.storage.transaction import json_ids

LOAD_SLICE: Final = 2_000


class DamagedRow:
    """A pack whose index cannot be read."""

    __slots__ = ("reason", "row")

    def __init__(self, row: PackRow, reason: str) -> None:
        self.row = row
        self.reason = reason


class Reader:
    """Opens its connection at the first `load`."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._opening: Future[aiosqlite.Connection] | None = None
        self._closed = False

    async def load(self, message_ids: Sequence[int]) -> list[LoadResult]:
        ascending = sorted(set(message_ids))
        results = {result.id: result for result in split_runs(await self.load_runs(ascending))}
        return [results[message_id] for message_id in message_ids]

    async def load_runs(self, message_ids: Sequence[int]) -> list[LoadedRun]:
        """The messages with these ids, which ascend."""
        results: list[LoadedRun] = []
        for start in range(0, len(message_ids), LOAD_SLICE):
            results += await self._load_slice(message_ids[start : start + LOAD_SLICE])
        return results

    async def _load_slice(self, ids: Sequence[int], look_up: bool = False) -> list[LoadedRun]:
        try:
            row = await self._query(ids, look_up)
            packs = list(split_row(row)) if row[0] else []
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
                raise StoreError(f"cannot read content: {error}") from error
            if len(ids) == 1:
                return list((await to_thread(_read_each, self._database, ids)).values())
            # One damaged row makes the whole aggregate unreadable: load each message alone.
            return [result for one in ids for result in await self._load_slice([one])]
        if not look_up and any(_is_missing(ids, packs)):
            # A page with the content of another one ends a scan too early: look each up.
            return await self._load_slice(ids, look_up=True)
        results = await self._chosen(ids, packs)
        missing = [result.id for result in results if _is_no_such(result)] if look_up else []
        if missing:
            again = await to_thread(_read_each, self._database, missing)
            results = [again[one.id] if _is_no_such(one) else one for one in results]
        return results

    async def _chosen(self, ids: Sequence[int], packs: list[Pack | DamagedRow]) -> list[LoadedRun]:
        """The messages with these ids, from packs that have all of them that are stored."""
        results: list[LoadedRun] = []
        at = 0
        for pack in packs:
            while at < len(ids) and ids[at] < pack.row.id:
                results.append(UnreadableMessage(ids[at], NO_SUCH_MESSAGE))
                at += 1
            start = at
            while at < len(ids) and ids[at] <= pack.row.last_id:
                at += 1
            results += await self._messages(pack, ids[start:at])
        return results + [UnreadableMessage(one, NO_SUCH_MESSAGE) for one in ids[at:]]

    async def _messages(self, pack: Pack | DamagedRow, ids: Sequence[int]) -> list[LoadedRun]:
        if isinstance(pack, DamagedRow):
            return [UnreadableMessage(message_id, pack.reason) for message_id in ids]
        if pack.row.parts:
            loaded = await self._load_parts(pack)
            if not isinstance(loaded, Pack):
                return [loaded] if ids else []
            pack = loaded
        return list(pack.select(ids))

    async def _load_parts(self, pack: Pack) -> Pack | LoadedRun:
        """A body in parts, one query for each: a longer one would hold the GIL for too long."""
        row, first = pack.row, pack.row.first_part or 0
        found = [await self._maybe_part(part) for part in range(first, first + row.parts)]
        if row.data is None:
            # Zeroes for a part that is lost: the messages of the others are in their places.
            return Pack(row, b"".join([piece or bytes(PART_BYTES) for piece in found]))
        pieces = [piece for piece in found if piece is not None]
        if len(pieces) < row.parts:
            return UnreadableMessage(row.id, "a part of its body is missing")
        checksum = 0
        for piece in pieces:
            checksum = extend(checksum, piece)
        frames = pack.frames(0, 1)
        body = LargeBody(pieces)
        if not pack.are_sound(0, frames):
            return UnreadableMessage(row.id, "its content does not match its checksum")
        if len(body) != row.body_bytes or checksum != row.body_crc:
            return UnreadableMessage(row.id, "its body does not match its checksum")
        return pack.restored_large(pack.runs[0], 0, frames[0], body)

    async def _maybe_part(self, part: int) -> bytes | None:
        connection = await self._connection()
        try:
            found = [*await connection.execute_fetchall(compiled.LOAD_PART, (part,))]
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise StoreError(f"cannot read content: {error}") from error
            return None
        return found[0][0] if found and isinstance(found[0][0], bytes) else None

    async def _query(self, ids: Sequence[int], look_up: bool) -> Sequence[bytes]:
        connection = await self._connection()
        if not look_up and len(ids) > 1 and is_run(ids):
            rows = await connection.execute_fetchall(compiled.LOAD_RUN, (ids[0], ids[-1]))
        else:
            rows = await connection.execute_fetchall(compiled.LOAD, (json_ids(ids),))
        return tuple(*rows)

    async def _connection(self) -> aiosqlite.Connection:
        """A cancelled caller leaves the opening to the other callers, and to `close`."""
        if self._closed:
            raise StoreError("cannot read content: the store is closed")
        if self._opening is None or _has_failed(self._opening):
            self._opening = ensure_future(_connect(self._database))
        return await shield(self._opening)

    async def close(self) -> None:
        """Return when nothing runs on the connection's thread any more."""
        self._closed = True
        if self._opening is not None:
            await wait([self._opening])
            if not _has_failed(self._opening):
                await self._opening.result().close()


async def _connect(database: Path) -> aiosqlite.Connection:
    connector = partial(open_read_only, database, as_bytes=True)
    connection = aiosqlite.Connection(connector, iter_chunk_size=1)
    # A process that exits without closing its store must not wait for this thread. Before version
    # 0.22, the connection is the thread itself.
    thread: Any = getattr(connection, "_thread", connection)
    thread.daemon = True
    return await connection


def _is_no_such(result: LoadedRun) -> TypeGuard[UnreadableMessage]:
    return isinstance(result, UnreadableMessage) and result.reason == NO_SUCH_MESSAGE


# Near damaged pages -------------------------------------------------------------------------------


def _read_each(database: Path, message_ids: Sequence[int]) -> dict[int, LoadedRun]:
    """Messages that a query does not find because of a damaged page, if their own are sound."""
    with closing(open_read_only(database)) as connection:
        return {message_id: _read_one(connection, message_id) for message_id in message_ids}


def _read_one(connection: sqlite3.Connection, message_id: int) -> LoadedRun:
    try:
        number = _maybe_pack(connection, message_id)
        if number is None:
            return UnreadableMessage(message_id, NO_SUCH_MESSAGE)
        row = connection.execute(compiled.PACK_INDEX, (number,)).fetchone()
        pack = Pack(PackRow._make((*row, None)))
        at = pack.maybe_position(message_id)
        if at is None or pack.row.parts:
            return UnreadableMessage(message_id, NO_SUCH_MESSAGE)
        start = sum(pack.sizes[:at])
        with connection.blobopen("message_packs", "data", number, readonly=True) as blob:
            blob.seek(start)
            pack.data = bytes(start) + blob.read(pack.sizes[at])  # reads no page behind
        return next(pack.select([message_id]))
    except (sqlite3.DatabaseError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
            raise StoreError(f"cannot read content: {error}") from error
        return UnreadableMessage(message_id, f"unreadable: {error}")


def _maybe_pack(connection: sqlite3.Connection, message_id: int) -> int | None:
    """The pack of a message. The other queries search downwards from the message's own id, which
    needs the page behind the pack; this one searches upwards, and avoids pages with damage."""
    found = last = 0
    end = message_id
    while found < end:
        middle = (found + end) // 2
        row = _maybe_next_pack(connection, middle, message_id)
        if row is None:
            end = middle
        else:
            found, last = row
    return found if last >= message_id else None


def _maybe_next_pack(
    connection: sqlite3.Connection, after: int, upto: int
) -> tuple[int, int] | None:
    try:
        row: tuple[int, int] | None = connection.execute(
            compiled.NEXT_PACK, (after, upto)
        ).fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return None
    # A lower id is on a page with the content of another one.
    return row if row is not None and row[0] > after else None


def _has_failed(opening: Future[aiosqlite.Connection]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the data itself is bad; any other error (no file handles, I/O) may be temporary."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_undecodable(error: sqlite3.OperationalError) -> bool:
    """Whether a text is not UTF-8: damage that SQLite itself does not notice."""
    return str(error).startswith("Could not decode to UTF-8")


def is_run(ids: Sequence[int]) -> bool:
    """Whether the ids are consecutive."""
    return ids[-1] - ids[0] == len(ids) - 1 and is_ascending(ids)


def split_row(row: Sequence[bytes]) -> Iterator[Pack | DamagedRow]:
    """Split the single result row into packs, ordered by id, and verify the index of each."""
    numbers = orjson.loads(b"[[" + b"],[".join(row[: LOAD_NUMBERS + LOAD_BLOBS]) + b"]]")
    blobs = [
        _split(joined, lengths)
        for joined, lengths in zip(
            row[LOAD_NUMBERS + LOAD_BLOBS :], numbers[LOAD_NUMBERS:], strict=True
        )
    ]
    rows = [
        PackRow._make(
            (
                *values[:8],
                None if values[8] < 0 else values[8],
                values[9],
                runs or b"",
                ids,
                sizes or b"",
                crcs or b"",
                *values[10:],
                data,
            )
        )
        for values, runs, ids, sizes, crcs, data in zip(
            zip(*numbers[:LOAD_NUMBERS], strict=True), *blobs, strict=True
        )
    ]
    rows.sort()
    for at, pack in enumerate(rows, 1):
        try:
            yield Pack(pack)
        except DamagedPack as damage:
            if at < len(rows):  # its last id may be damaged
                pack = pack._replace(last_id=min(pack.last_id, rows[at].id - 1))
            yield DamagedRow(pack, str(damage))


def _split(joined: bytes, lengths: Sequence[int]) -> list[bytes | None]:
    """Cut joined values apart; those with a negative length were NULL."""
    ends = list(accumulate(max(length, 0) for length in lengths))
    return [
        None if length < 0 else joined[end - length : end]
        for length, end in zip(lengths, ends, strict=True)
    ]


def _is_missing(ids: Sequence[int], packs: list[Pack | DamagedRow]) -> Iterator[bool]:
    """For each id, whether none of these packs has it."""
    at = 0
    for message_id in ids:
        while at < len(packs) and packs[at].row.last_id < message_id:
            at += 1
        yield at == len(packs) or packs[at].row.id > message_id
