"""One message's life, read from the stored history.

Own read-only connection on a borrowed thread, so it works on a data directory beside the process
that writes it. Slow compared with the rest of this room: events are packed by commit, and finding
one message means looking through the id ranges of all of them. Meant for a person who asks, not
for a program.
"""

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from leveret.model.history import EventKind, Keep, OriginKind
from leveret.model.store import Origin, StoreError
from queues.storage import statements
from queues.storage.packing import pack_ids, unpack_ids, unpack_sizes

FIND_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened to the message. `actor` None: the broker itself."""

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
class Life:
    """`body` is None when history has not kept it."""

    id: int
    time_ms: int
    publisher: Origin | None
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes | None
    size: int
    keep: Keep
    happenings: tuple[Happening, ...]


class HistoryReader:
    """Opened for each question; questions are rare."""

    def __init__(self, database: Path) -> None:
        self._database = database

    async def life(self, message_id: int) -> Life | None:
        """Everything stored about a message, oldest first; None if nothing is."""
        return await asyncio.to_thread(self._life, message_id)

    async def find(self, piece: bytes, limit: int = FIND_LIMIT) -> list[tuple[int, bytes]]:
        """Messages whose stored properties contain these bytes, newest first, and the properties.

        For a message id given by the publisher: look for its bytes, then check the property.
        """
        return await asyncio.to_thread(self._find, piece, limit)

    async def gone_queues(self) -> list[tuple[str, str]]:
        """Vhosts and names of queues that were deleted, as long as their history is kept."""
        return await asyncio.to_thread(self._gone_queues)

    def _gone_queues(self) -> list[tuple[str, str]]:
        with self._open() as connection:
            return [(vhost, name) for vhost, name in connection.execute(statements.GONE_QUEUES)]

    async def had_before(self, births: Mapping[str, int]) -> set[str]:
        """Of vhosts and the times they were made, those whose names others had before them, as
        long as history of then is kept."""
        return await asyncio.to_thread(self._had_before, births)

    def _had_before(self, births: Mapping[str, int]) -> set[str]:
        with self._open() as connection:
            (oldest,) = connection.execute(statements.OLDEST_HISTORY).fetchone()
            candidates = [one for one in births.items() if oldest is not None and oldest < one[1]]
            before = statements.WAS_THERE_BEFORE
            return {
                one[0] for one in candidates if connection.execute(before, one * 2).fetchone()[0]
            }

    def _life(self, message_id: int) -> Life | None:
        with self._open() as connection:
            row = connection.execute(statements.ONE_MESSAGE, (message_id,)).fetchone()
            if row is None:
                return None
            events = connection.execute(
                statements.EVENTS_OF_MESSAGE, (message_id, message_id, pack_ids([message_id]))
            ).fetchall()
        id_, time_ms, exchange, key, properties, body, size, keep, *origin = row
        happenings = [_happening(event, message_id) for event in events]
        return Life(
            id=id_,
            time_ms=time_ms,
            publisher=_origin(origin),
            exchange=exchange,
            routing_key=key,
            properties=properties,
            body=body,
            size=size,
            keep=Keep(keep),
            happenings=tuple(found for found in happenings if found is not None),
        )

    def _find(self, piece: bytes, limit: int) -> list[tuple[int, bytes]]:
        with self._open() as connection:
            return connection.execute(statements.FIND_PROPERTIES, (piece, limit)).fetchall()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        address = f"file:{quote(str(self._database))}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
                for statement in statements.AT_READER_START:
                    connection.execute(statement).fetchall()
                yield connection
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the history in {self._database}: {error}") from error


def _happening(row: Sequence[Any], message_id: int) -> Happening | None:
    time_ms, kind, queue_id, vhost, queue, queue_kind, detail, ids, sizes, *origin = row
    found = unpack_ids(ids)
    if message_id not in found:
        return None  # the bytes matched across two neighbours
    size = None if sizes is None else unpack_sizes(sizes)[found.index(message_id)]
    return Happening(
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
