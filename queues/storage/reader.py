"""Reads content back from the database, ahead of the consumers that will need it.

Uses its own read-only connection on aiosqlite's thread; each query sees everything committed before
it began. A query returns one row (see `core_statements.LOAD`), which is split into messages on the
loop thread in slices, so that a long read-ahead does not stall other work.
A message that does not match its checksum is an `UnreadableMessage`: it is reported, never returned
as content. An error that says nothing about the data is raised: the caller tries again.
"""

import sqlite3
from asyncio import Future, ensure_future, shield, wait
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiosqlite
import orjson

from leveret.model.checksum import extend
from leveret.model.message import LargeBody, part_count
from leveret.model.store import LoadResult, StoredMessage, StoreError, UnreadableMessage
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage.journal_replay import is_ascending
from leveret.queues.storage.packing import (
    body_checksum,
    head_checksum,
    route_checksum,
)
from leveret.queues.storage.read_only import open_read_only
from leveret.queues.storage.statements import LOAD_NUMBERS
from leveret.queues.storage.transaction import json_ids

LOAD_SLICE: Final = 512
NOT_KEPT: Final = "its body was not kept"


class Reader:
    """Opens its connection at the first `load`."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._opening: Future[aiosqlite.Connection] | None = None
        self._closed = False

    async def load(self, message_ids: Sequence[int]) -> list[LoadResult]:
        results: dict[int, LoadResult] = {}
        for start in range(0, len(message_ids), LOAD_SLICE):
            ids = message_ids[start : start + LOAD_SLICE]
            await self._load_slice(ids, results)
            if len(results) < start + len(ids):
                # A page with the content of another one ends a scan too early: look each up.
                missing = [message_id for message_id in ids if message_id not in results]
                await self._load_slice(missing, results, look_up=True)
        return [results.get(i) or UnreadableMessage(i, "no such message") for i in message_ids]

    async def _load_slice(
        self, ids: Sequence[int], results: dict[int, LoadResult], look_up: bool = False
    ) -> None:
        try:
            row = await self._query(ids, look_up)
            if row[0] is not None:
                results.update({message.id: message for message in split_row(row)})
                for message_id in ids:
                    result = results.get(message_id)
                    if isinstance(result, UnreadableMessage) and result.reason == NOT_KEPT:
                        results[message_id] = await self._load_large(message_id)
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
                raise StoreError(f"cannot read content: {error}") from error
            if len(ids) == 1:
                results[ids[0]] = UnreadableMessage(ids[0], f"unreadable: {error}")
                return
            # One damaged row makes the whole aggregate unreadable: load each message alone.
            for message_id in ids:
                await self._load_slice([message_id], results)

    async def _load_large(self, message_id: int) -> LoadResult:
        """A body in parts, one query for each: a longer one would hold the GIL for too long."""
        connection = await self._connection()
        rows = [*await connection.execute_fetchall(compiled.LOAD_LARGE, (message_id,))]
        if not rows:
            return UnreadableMessage(message_id, NOT_KEPT)
        id_, time_ms, origin, exchange, key, properties, size, head_crc, body_crc, first = rows[0]
        checksum, route = 0, _route(exchange, key)
        if head_checksum(route[0], id_, size, properties) != head_crc:
            return UnreadableMessage(message_id, "its head does not match its checksum")
        pieces: list[bytes] = []
        for part in range(first, first + part_count(size)):
            found = [*await connection.execute_fetchall(compiled.LOAD_PART, (part,))]
            if not found:
                return UnreadableMessage(message_id, "a part of its body is missing")
            pieces.append(found[0][0])
            checksum = extend(checksum, pieces[-1])
        body = LargeBody(pieces)
        if len(body) != size or checksum != body_crc:
            return UnreadableMessage(message_id, "its body does not match its checksum")
        return StoredMessage(id_, time_ms, origin, route[1], route[2], properties, body)

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


def split_row(row: Sequence[bytes]) -> Iterator[LoadResult]:
    """Split the single result row into messages, and verify each."""
    numbers = orjson.loads(b"[[" + b"],[".join(row[:LOAD_NUMBERS]) + b"]]")
    exchanges, keys, properties, bodies = row[LOAD_NUMBERS:]
    at_exchange = at_key = at_properties = at_body = 0
    routes: dict[tuple[bytes, bytes], tuple[int, str, str]] = {}
    for (id_, time_ms, origin, size, exchange_size, key_size, properties_size, body_size,
         head_crc, body_crc) in zip(*numbers, strict=True):  # fmt: skip
        exchange = exchanges[at_exchange : (at_exchange := at_exchange + exchange_size)]
        key = keys[at_key : (at_key := at_key + key_size)]
        head = properties[at_properties : (at_properties := at_properties + properties_size)]
        route = routes.get((exchange, key))
        if route is None:
            route = routes[exchange, key] = _route(exchange, key)
        if body_size < 0:
            yield UnreadableMessage(id_, NOT_KEPT)
            continue
        body = bodies[at_body : (at_body := at_body + body_size)]
        if head_checksum(route[0], id_, size, head) != head_crc:
            yield UnreadableMessage(id_, "its head does not match its checksum")
        elif body_size != size or body_checksum(body) != body_crc:
            yield UnreadableMessage(id_, "its body does not match its checksum")
        else:
            yield StoredMessage(id_, time_ms, origin, route[1], route[2], head, body)


def _route(exchange: bytes, key: bytes) -> tuple[int, str, str]:
    return (
        route_checksum(exchange, key),
        exchange.decode("utf-8", "replace"),
        key.decode("utf-8", "replace"),
    )
