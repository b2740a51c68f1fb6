"""Content read back, ahead of the consumers that will need it.

Own read-only connection on aiosqlite's thread; it never checkpoints, and each query sees everything
committed before it began. A query answers with one row (see `statements.LOAD`), which is cut up
here on the loop thread in slices, so that a long read-ahead does not stall other work.
Whatever does not match its checksum is `Rotten`: it is reported, never returned as content. An
error that says nothing about the data is raised: the caller tries again.
"""

import sqlite3
from asyncio import Future, ensure_future, shield, wait
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import aiosqlite
import orjson

from leveret.model.store import Rotten, StoredMessage, StoreError
from queues.storage import statements
from queues.storage.fold import is_ascending
from queues.storage.packing import body_checksum, head_checksum, route_checksum
from queues.storage.transaction import json_ids

LOAD_SLICE = 512


class Reader:
    """Opened at the first `load`."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._opening: Future[aiosqlite.Connection] | None = None
        self._closed = False

    async def load(self, message_ids: Sequence[int]) -> list[StoredMessage | Rotten]:
        found: dict[int, StoredMessage | Rotten] = {}
        for start in range(0, len(message_ids), LOAD_SLICE):
            await self._load_slice(message_ids[start : start + LOAD_SLICE], found)
        return [found.get(i) or Rotten(i, "no such message") for i in message_ids]

    async def _load_slice(
        self, ids: Sequence[int], found: dict[int, StoredMessage | Rotten]
    ) -> None:
        try:
            row = await self._query(ids)
            if row[0] is not None:
                found.update({message.id: message for message in cut(row)})
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
                raise StoreError(f"cannot read content: {error}") from error
            if len(ids) == 1:
                found[ids[0]] = Rotten(ids[0], f"unreadable: {error}")
                return
            # One damaged row hides its neighbours in the aggregate: ask for each alone.
            for message_id in ids:
                await self._load_slice([message_id], found)

    async def _query(self, ids: Sequence[int]) -> Sequence[bytes]:
        connection = await self._open()
        if len(ids) > 1 and is_run(ids):
            rows = await connection.execute_fetchall(statements.LOAD_RUN, (ids[0], ids[-1]))
        else:
            rows = await connection.execute_fetchall(statements.LOAD, (json_ids(ids),))
        return tuple(*rows)

    async def _open(self) -> aiosqlite.Connection:
        """A caller that is cancelled leaves the opening to the others, and to `close`."""
        if self._closed:
            raise StoreError("cannot read content: the store is closed")
        if self._opening is None or _failed(self._opening):
            self._opening = ensure_future(_connect(self._database))
        return await shield(self._opening)

    async def close(self) -> None:
        """Nothing runs on the connection's thread any more, whoever was waiting for it."""
        self._closed = True
        if self._opening is not None:
            await wait([self._opening])
            if not _failed(self._opening):
                await self._opening.result().close()


async def _connect(database: Path) -> aiosqlite.Connection:
    address = f"file:{quote(str(database))}?mode=ro"
    connection = aiosqlite.connect(address, uri=True, isolation_level=None)
    # A process that ends without closing its store must still end.
    connection._thread.daemon = True
    await connection
    try:
        connection.text_factory = bytes
        for statement in statements.AT_READER_START:
            await connection.execute_fetchall(statement)
    except BaseException:
        await connection.close()
        raise
    return connection


def _failed(opening: Future[aiosqlite.Connection]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the data itself is bad; anything else (no more files, an I/O error) may pass."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_run(ids: Sequence[int]) -> bool:
    """Whether the ids follow one another without a gap."""
    return ids[-1] - ids[0] == len(ids) - 1 and is_ascending(ids)


def cut(row: Sequence[bytes]) -> Iterator[StoredMessage | Rotten]:
    """Take the single answer row apart again, checking every message."""
    numbers = orjson.loads(b"[[" + b"],[".join(row[: statements.LOAD_NUMBERS]) + b"]]")
    exchanges, keys, properties, bodies = row[statements.LOAD_NUMBERS :]
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
            yield Rotten(id_, "its body was not kept")
            continue
        body = bodies[at_body : (at_body := at_body + body_size)]
        if head_checksum(route[0], id_, size, head) != head_crc:
            yield Rotten(id_, "its head does not match its checksum")
        elif body_size != size or body_checksum(body) != body_crc:
            yield Rotten(id_, "its body does not match its checksum")
        else:
            yield StoredMessage(id_, time_ms, origin, route[1], route[2], head, body)


def _route(exchange: bytes, key: bytes) -> tuple[int, str, str]:
    return (
        route_checksum(exchange, key),
        exchange.decode("utf-8", "replace"),
        key.decode("utf-8", "replace"),
    )
