"""Databases of schema 3, with one row per message, and what schema 4 makes of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from leveret.model.checksum import checksum
from leveret.model.store import UnreadableMessage
from leveret.queues.storage import old_messages
from leveret.queues.storage.packs import Pack, PackRow
from leveret.queues.storage.statements import AT_CREATION

_TABLES = """
CREATE TABLE meta ("key" TEXT NOT NULL, value TEXT DEFAULT '' NOT NULL, PRIMARY KEY ("key"));
INSERT INTO meta VALUES ('schema_version', '3');
CREATE TABLE messages (
    id INTEGER NOT NULL, time_ms BIGINT DEFAULT '0' NOT NULL, origin BIGINT DEFAULT '0' NOT NULL,
    keep BIGINT DEFAULT '0' NOT NULL, size BIGINT DEFAULT '0' NOT NULL,
    exchange TEXT DEFAULT '' NOT NULL, routing_key TEXT DEFAULT '' NOT NULL,
    properties BLOB NOT NULL, body BLOB, head_crc BIGINT DEFAULT '0' NOT NULL,
    body_crc BIGINT DEFAULT '0' NOT NULL, first_part BIGINT, PRIMARY KEY (id)
);
CREATE INDEX large_messages ON messages (first_part) WHERE first_part IS NOT NULL;
CREATE TABLE body_parts (id INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (id));
"""


class OldRow(NamedTuple):
    """A row of `messages`."""

    id: int
    time_ms: int
    origin: int
    keep: int
    size: int
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes | None
    head_crc: int
    body_crc: int
    first_part: int | None

    @property
    def is_sound(self) -> bool:
        return old_messages.is_sound(self._asdict())


def old_row(
    message_id: int,
    body: bytes | None,
    *,
    time_ms: int = 1_700_000_000_000,
    origin: int = 0,
    keep: int = 2,
    exchange: str = "",
    routing_key: str = "q1",
    properties: bytes = b"\x10\x00\x02",
    size: int | None = None,
    first_part: int | None = None,
) -> OldRow:
    """`size`: if there is no body, or if it is in parts."""
    length = len(body or b"") if size is None else size
    route = old_messages.route_checksum(exchange.encode(), routing_key.encode())
    head = old_messages.head_checksum(route, message_id, length, properties)
    body_crc = checksum(body) if body is not None else 17
    return OldRow(
        message_id, time_ms, origin, keep, length, exchange, routing_key, properties, body, head,
        body_crc, first_part,
    )  # fmt: skip


def create_old(database: Path | str, rows: Iterable[OldRow]) -> sqlite3.Connection:
    connection = sqlite3.connect(database, isolation_level=None)
    for statement in AT_CREATION:
        connection.execute(statement)
    connection.executescript(_TABLES)
    insert_old(connection, rows)
    return connection


def insert_old(connection: sqlite3.Connection, rows: Iterable[OldRow]) -> None:
    connection.execute("BEGIN")
    sql = f"INSERT INTO messages VALUES ({','.join('?' * len(OldRow._fields))})"
    connection.executemany(sql, rows)
    connection.execute("COMMIT")


def read_old(connection: sqlite3.Connection) -> dict[int, OldRow]:
    names = ", ".join(OldRow._fields)
    rows = map(OldRow._make, connection.execute(f"SELECT {names} FROM messages ORDER BY id"))
    return {row.id: row for row in rows}


def read_packs(connection: sqlite3.Connection) -> list[Pack]:
    rows = connection.execute("SELECT * FROM message_packs ORDER BY id")
    return [Pack(PackRow._make(row)) for row in rows]


def unreadable_in(packs: Iterable[Pack]) -> dict[int, str]:
    return {
        result.id: result.reason
        for pack in packs
        for result in pack.select(pack.ids)
        if isinstance(result, UnreadableMessage)
    }


def packed_messages(packs: Iterable[Pack]) -> Iterator[tuple[int, dict[str, Any]]]:
    """By id, what an old row has, too."""
    for pack in packs:
        contents = list(pack.contents())
        for run in pack.runs:
            for at in range(run.start, run.end):
                properties, body, size = contents[at]
                yield (
                    pack.ids[at],
                    {
                        "time_ms": run.time_ms,
                        "origin": run.origin,
                        "keep": pack.row.keep,
                        "exchange": run.exchange,
                        "routing_key": run.routing_key,
                        "properties": properties,
                        "body": body,
                        "size": size,
                        "first_part": pack.row.first_part,
                    },
                )


def assert_same_messages(old: dict[int, OldRow], packs: list[Pack]) -> None:
    """Every row is in one pack, and those that are sound have the same content."""
    found = dict(packed_messages(packs))
    assert [message_id for pack in packs for message_id in pack.ids] == list(old)
    unreadable = unreadable_in(packs)
    for message_id, row in old.items():
        if not row.is_sound:
            assert "checksum" in unreadable[message_id]
            continue
        expected = {name: value for name, value in row._asdict().items() if name in found[row.id]}
        if row.size == 0:
            expected["body"] = b""  # whether an empty body was kept does not matter
        assert found[message_id] == expected
        if row.first_part is None:
            is_unreadable = row.body is None and row.size > 0
            assert (message_id in unreadable) == is_unreadable
