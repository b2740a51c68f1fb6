"""Reads the stored history: the events of one message, and how much history there is.

Uses its own read-only connection on a worker thread, so it works beside the process that writes.
It is slow compared with the rest of the store: events are packed by commit, so finding one message
means scanning the id ranges of all events, and counting scans whole tables (not their content).
Meant for a person who asks, not for a program; totals are cached.
"""

import asyncio
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leveret.model.definitions import Origin
from leveret.model.history import INTERNAL_KINDS, EventKind, Keep, OriginKind
from leveret.model.store import StoreError
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.packing import pack_ids, unpack_ids, unpack_sizes
from leveret.queues.storage.packs import DamagedPack, Pack, PackedRun, PackRow
from leveret.queues.storage.read_only import open_read_only

FIND_LIMIT: Final = 100
CACHE_MIN_SECONDS: Final = 1.0
CACHE_FACTOR: Final = 20
"""Totals are cached for this many times as long as it took to count them."""


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """An event of the message. `actor` None: the broker itself."""

    time_ms: int
    kind: EventKind
    queue_id: int
    vhost: str
    queue: str
    queue_kind: str
    actor: Origin | None
    detail: str | None
    size: int | None


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """A stored message and its events, oldest first. `body` is None if history did not keep it."""

    id: int
    time_ms: int
    publisher: Origin | None
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes | None
    size: int
    keep: Keep
    events: tuple[MessageEvent, ...]
    parent: int | None = None
    """The message that this one is a copy of."""


@dataclass(frozen=True, slots=True)
class HistoryTotals:
    """What is stored now; times are None while there are no events."""

    bytes: int = 0
    messages: int = 0
    events: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


class HistoryReader:
    """Opens a connection for each query; queries are rare."""

    def __init__(self, database: Path) -> None:
        self._database = database

    async def message(self, message_id: int) -> MessageHistory | None:
        """Everything stored about a message, or None."""
        return await asyncio.to_thread(self._message, message_id)

    async def find(self, piece: bytes, limit: int = FIND_LIMIT) -> list[tuple[int, bytes]]:
        """Ids and properties of the messages whose stored properties contain these bytes.

        Newest first. For a message id set by the publisher: search for its bytes, then compare the
        property.
        """
        return await asyncio.to_thread(self._find, piece, limit)

    async def deleted_queues(self) -> list[tuple[str, str]]:
        """Vhosts and names of deleted queues that history still has events of."""
        return await asyncio.to_thread(self._deleted_queues)

    async def vhosts_existing_before(self, created_ms: Mapping[str, int]) -> set[str]:
        """The vhosts, given with their creation times, whose names were used before by others.

        Known only as far back as history is kept.
        """
        return await asyncio.to_thread(self._vhosts_existing_before, created_ms)

    def _deleted_queues(self) -> list[tuple[str, str]]:
        with _opened(self._database) as connection:
            rows = connection.execute(compiled.DELETED_QUEUES)
            return [(vhost, name) for vhost, name in rows]

    def _vhosts_existing_before(self, created_ms: Mapping[str, int]) -> set[str]:
        with _opened(self._database) as connection:
            (oldest,) = connection.execute(compiled.OLDEST_HISTORY).fetchone()
            sql = compiled.VHOST_EXISTED_BEFORE
            return {
                vhost
                for vhost, ms in created_ms.items()
                if oldest is not None
                and oldest < ms
                and connection.execute(sql, (vhost, ms, vhost, ms)).fetchone()[0]
            }

    def _message(self, message_id: int) -> MessageHistory | None:
        with _opened(self._database) as connection:
            found = _stored_message(connection, message_id)
            if found is None:
                return None
            run, properties, body, size, keep = found
            event_rows = connection.execute(
                compiled.EVENTS_OF_MESSAGE, (message_id, message_id, pack_ids([message_id]))
            ).fetchall()
            origin = connection.execute(compiled.ONE_ORIGIN, (run.origin,)).fetchone()
        found_events = [_event(event_row, message_id) for event_row in event_rows]
        events = [event for event in found_events if event is not None]
        distances = [event.size for event in events if event.kind is EventKind.COPIED]
        return MessageHistory(
            id=message_id,
            time_ms=run.time_ms,
            publisher=_origin(origin or [None]),
            exchange=run.exchange,
            routing_key=run.routing_key,
            properties=properties,
            body=body,
            size=size,
            keep=keep,
            events=tuple(event for event in events if event.kind not in INTERNAL_KINDS),
            parent=message_id - (distances[0] or 0) if distances else None,
        )

    def _find(self, piece: bytes, limit: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        with _opened(self._database) as connection:
            for row in connection.execute(compiled.FIND_BYTES, (piece,)):
                pack = _read_pack(connection, PackRow(*row))
                if pack is None:
                    continue
                contents = list(zip(pack.ids, pack.contents(), strict=True))
                for message_id, (properties, _, _) in reversed(contents):
                    if piece in properties:
                        found.append((message_id, properties))
                        if len(found) == limit:
                            return found
        return found


def _read_pack(connection: sqlite3.Connection, row: PackRow) -> Pack | None:
    """The pack with its data, wherever that is; None if it is damaged."""
    data = row.data if row.data is not None else b"".join(_parts(connection, row))
    try:
        return Pack(row, data)
    except DamagedPack:
        return None


def _parts(connection: sqlite3.Connection, row: PackRow) -> Iterator[bytes]:
    first = row.first_part or 0
    for part in range(first, first + row.parts):
        for (data,) in connection.execute(compiled.LOAD_PART, (part,)):
            yield data


def _stored_message(
    connection: sqlite3.Connection, message_id: int
) -> tuple[PackedRun, bytes, bytes | None, int, Keep] | None:
    """Its run, properties, body, size of the body, and what history keeps of it."""
    row = connection.execute(compiled.PACK_OF_MESSAGE, (message_id, message_id)).fetchone()
    pack = None if row is None else _read_pack(connection, PackRow(*row))
    at = None if pack is None else pack.maybe_position(message_id)
    if pack is None or at is None:
        return None
    properties, body, size = next(pack.contents(at, at + 1))
    if pack.row.parts and pack.row.data is not None:
        body = b"".join(_parts(connection, pack.row))
    run = next(run for run in pack.runs if run.start <= at < run.end)
    return run, properties, body, size, Keep(pack.row.keep)


class HistoryTotalsReader:
    """Counts what is stored, and caches the result for at least a second."""

    def __init__(self, data_dir: Path) -> None:
        self._database = data_dir / DATABASE_NAME
        self._totals = HistoryTotals()
        self._valid_until = 0.0
        self._lock = asyncio.Lock()

    async def read(self) -> HistoryTotals:
        async with self._lock:
            if time.monotonic() >= self._valid_until:
                started = time.monotonic()
                self._totals = await asyncio.to_thread(_totals, self._database)
                took = time.monotonic() - started
                lifetime = max(CACHE_MIN_SECONDS, took * CACHE_FACTOR)
                self._valid_until = time.monotonic() + lifetime
            return self._totals


def _totals(database: Path) -> HistoryTotals:
    with _opened(database) as connection:
        pages, free, size = connection.execute(compiled.PAGE_COUNTS).fetchone()
        first, last = connection.execute(compiled.EVENT_TIMES).fetchone()
        return HistoryTotals(
            bytes=(pages - free) * size,
            messages=connection.execute(compiled.COUNT_MESSAGES).fetchone()[0],
            events=connection.execute(compiled.COUNT_EVENTS).fetchone()[0],
            first_ms=first,
            last_ms=last,
        )


@contextmanager
def _opened(database: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(open_read_only(database)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise StoreError(f"cannot read the history in {database}: {error}") from error


def _event(row: Sequence[Any], message_id: int) -> MessageEvent | None:
    time_ms, kind, queue_id, vhost, queue, queue_kind, detail, packed_ids, sizes, *origin = row
    ids = unpack_ids(packed_ids)
    if message_id not in ids:
        return None  # the searched bytes span two adjacent ids
    size = None if sizes is None else unpack_sizes(sizes)[ids.index(message_id)]
    return MessageEvent(
        time_ms=time_ms,
        kind=EventKind(kind),
        queue_id=queue_id,
        vhost=vhost or "",
        queue=queue or "",
        queue_kind=queue_kind or "",
        actor=_origin(origin),
        detail=detail,
        size=size,
    )


def _origin(row: Sequence[Any]) -> Origin | None:
    if row[0] is None:
        return None
    return Origin(row[0], OriginKind(row[1]), *row[2:])
