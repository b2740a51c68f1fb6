"""All SQL that is spelled out by hand, and all that only SQLite understands.

Why by hand: with the event loop busy, the driver re-takes the GIL for every statement it steps, so
the writer uses few, large statements (one INSERT of many rows, never `executemany`) and the reader
gets its answer as a single row. Statement sizes are few and fixed, so each is prepared once.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Final

from leveret.model.history import HANDED_OUT_KINDS, EventKind
from leveret.model.store import (
    BindingDefinition,
    ExchangeDefinition,
    GroupOffset,
    Origin,
    ParameterDefinition,
    PermissionDefinition,
    PolicyDefinition,
    QueueDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from queues.storage.keys import KEY_COLUMNS

SCHEMA_VERSION: Final = 1
PAGE_SIZE: Final = 8192

# 2048 rows of 11 columns stay below SQLite's default limit of 32766 variables.
LARGEST_INSERT: Final = 2048

PAGE_COUNT: Final = "PRAGMA page_count"
AT_CREATION: Final = (f"PRAGMA page_size={PAGE_SIZE}", "PRAGMA auto_vacuum=INCREMENTAL")

AT_WRITER_START: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA fullfsync=ON",
    "PRAGMA checkpoint_fullfsync=ON",
    "PRAGMA secure_delete=OFF",
    "PRAGMA wal_autocheckpoint=0",
    "PRAGMA journal_size_limit=67108864",
    "PRAGMA cache_size=-16384",
    "PRAGMA temp_store=MEMORY",
)
SYNC_LESS: Final = {level: (f"PRAGMA synchronous={level}",) for level in ("NORMAL", "OFF")}
"""For the power-loss tests' negative control only."""

AT_READER_START: Final = (
    "PRAGMA wal_autocheckpoint=0",
    "PRAGMA query_only=ON",
    "PRAGMA cache_size=-8192",
)

BEGIN: Final = "BEGIN IMMEDIATE"
COMMIT: Final = "COMMIT"
SYNC_LEVEL: Final = "PRAGMA synchronous"
SYNC_LATER: Final = "PRAGMA synchronous=NORMAL"
ROLLBACK: Final = "ROLLBACK"
CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"
DO_NOT_WAIT: Final = "PRAGMA busy_timeout=100"
CHECKPOINT_AND_TRUNCATE: Final = "PRAGMA wal_checkpoint(TRUNCATE)"
PAGE_COUNTS: Final = (
    "SELECT page_count, freelist_count, page_size"
    " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
GIVE_BACK_PAGES: Final = "PRAGMA incremental_vacuum({pages})"

DEFINITION_TABLES: Final[dict[type[object], str]] = {
    VhostDefinition: "vhosts",
    UserDefinition: "users",
    PermissionDefinition: "permissions",
    TopicPermissionDefinition: "topic_permissions",
    ExchangeDefinition: "exchanges",
    QueueDefinition: "queues",
    BindingDefinition: "bindings",
    PolicyDefinition: "policies",
    ParameterDefinition: "parameters",
    GroupOffset: "group_offsets",
    Origin: "origins",
}


def columns_of(kind: type[object]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))  # type: ignore[arg-type]


STATEMENT_SIZES: Final = sorted(
    {*range(1, 33), *(n << k for k in range(5, 12) for n in (1, 3) if n << k <= LARGEST_INSERT)}
)


def columns_by_table() -> dict[str, tuple[str, ...]]:
    """What is read and written, as opposed to what else an older or newer schema may have."""
    definitions = {table: columns_of(kind) for kind, table in DEFINITION_TABLES.items()}
    return {"messages": MESSAGE_COLUMNS, "events": EVENT_COLUMNS} | definitions


def statement_sizes(rows: int) -> Iterator[int]:
    """Cut a number of rows into the sizes for which statements exist: few, and large first."""
    while rows:
        size = STATEMENT_SIZES[bisect_right(STATEMENT_SIZES, rows) - 1]
        yield size
        rows -= size


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _rows_of_marks(columns: int, rows: int) -> str:
    return ",".join(["(" + ",".join("?" * columns) + ")"] * rows)


MESSAGE_COLUMNS: Final = (
    "id", "time_ms", "origin", "keep", "size", "exchange", "routing_key", "properties", "body",
    "head_crc", "body_crc",
)  # fmt: skip
EVENT_COLUMNS: Final = (
    "id", "time_ms", "kind", "queue_id", "actor", "detail", "count", "first_id", "last_id", "ids",
    "sizes", "crc",
)  # fmt: skip


@cache
def insert_messages(rows: int) -> str:
    return _insert("messages", MESSAGE_COLUMNS, rows)


@cache
def insert_events(rows: int) -> str:
    return _insert("events", EVENT_COLUMNS, rows)


def _insert(table: str, columns: Sequence[str], rows: int) -> str:
    marks = _rows_of_marks(len(columns), rows)
    return f"INSERT INTO {table} ({_quoted(columns)}) VALUES {marks}"  # noqa: S608


def upsert(kind: type[object], rows: int) -> str:
    """Insert or replace definitions; columns the definition does not name keep their value."""
    columns, keys = columns_of(kind), KEY_COLUMNS[kind]
    others = [name for name in columns if name not in keys]
    update = ", ".join(f'"{name}"=excluded."{name}"' for name in others)
    action = f"UPDATE SET {update}" if others else "NOTHING"
    return f"{_insert_definitions(kind, rows)} ON CONFLICT ({_quoted(keys)}) DO {action}"


def insert_missing(kind: type[object], rows: int) -> str:
    keys = _quoted(KEY_COLUMNS[kind])
    return f"{_insert_definitions(kind, rows)} ON CONFLICT ({keys}) DO NOTHING"


def _insert_definitions(kind: type[object], rows: int) -> str:
    return _insert(DEFINITION_TABLES[kind], columns_of(kind), rows)


def delete(kind: type[object], rows: int) -> str:
    table, keys = DEFINITION_TABLES[kind], KEY_COLUMNS[kind]
    marks = _rows_of_marks(len(keys), rows)
    return f"DELETE FROM {table} WHERE ({_quoted(keys)}) IN (VALUES {marks})"  # noqa: S608


def select(kind: type[object]) -> str:
    """All that is there; of queues those that came back: durable ones that were not deleted."""
    rows = f"SELECT {_quoted(columns_of(kind))} FROM {DEFINITION_TABLES[kind]}"  # noqa: S608
    return f"{rows} WHERE deleted_ms IS NULL AND durable" if kind is QueueDefinition else rows


# -- queues and meta -----------------------------------------------------------------------------

RETIRE_QUEUES: Final = "UPDATE queues SET deleted_ms=? WHERE id IN (SELECT value FROM json_each(?))"
FORGET_GROUPS: Final = (
    "DELETE FROM group_offsets WHERE queue_id IN (SELECT value FROM json_each(?))"
)
SET_SNAPSHOT: Final = "UPDATE queues SET snapshot_event=? WHERE id=?"
TRIM_QUEUE: Final = "DELETE FROM events WHERE queue_id=? AND id<?"
TABLE_NAMES: Final = "SELECT name FROM sqlite_master WHERE type='table'"
COLUMN_NAMES: Final = (
    "SELECT t.name, c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c"
    " WHERE t.type='table'"
)
GET_SCHEMA_VERSION: Final = "SELECT value FROM meta WHERE \"key\"='schema_version'"
SET_META: Final = (
    'INSERT INTO meta ("key", value) VALUES (?, ?)'
    ' ON CONFLICT ("key") DO UPDATE SET value=excluded.value'
)
GET_META: Final = 'SELECT "key", value FROM meta'

# -- content -------------------------------------------------------------------------------------

DISCARD: Final = "DELETE FROM messages WHERE id IN (SELECT value FROM json_each(?)) AND keep=0"
STRIP: Final = (
    "UPDATE messages SET body=NULL, body_crc=0"
    " WHERE id IN (SELECT value FROM json_each(?)) AND keep=1 AND body IS NOT NULL"
)

# Under load one answer row costs one wait for the GIL, a thousand rows cost a thousand. Every
# aggregate of one query meets the rows in the same order, so the lengths tell where to cut.
# One aggregate per number: joining the numbers of a row first would cost four times as much.
LOAD: Final = """
SELECT group_concat(id), group_concat(time_ms), group_concat(origin), group_concat(size),
       group_concat(length(CAST(exchange AS BLOB))),
       group_concat(length(CAST(routing_key AS BLOB))),
       group_concat(length(CAST(properties AS BLOB))),
       group_concat(coalesce(length(CAST(body AS BLOB)), -1)),
       group_concat(head_crc), group_concat(body_crc),
       group_concat(CAST(exchange AS TEXT), ''),
       group_concat(CAST(routing_key AS TEXT), ''),
       group_concat(CAST(properties AS TEXT), ''),
       group_concat(coalesce(CAST(body AS TEXT), ''), '')
FROM messages WHERE id IN (SELECT value FROM json_each(?))
"""
LOAD_NUMBERS: Final = 10
LOAD_RUN: Final = LOAD.replace("id IN (SELECT value FROM json_each(?))", "id BETWEEN ? AND ?")

# -- recovery ------------------------------------------------------------------------------------

_STATE = ", ".join(
    str(int(kind))
    for kind in EventKind
    if kind.settles or kind in (EventKind.ENQUEUED, EventKind.SNAPSHOT)
)
JOURNAL: Final = (
    'SELECT time_ms, kind, queue_id, actor, detail, "count", ids, sizes, crc FROM events'  # noqa: S608
    f" WHERE queue_id=? AND id>=? AND kind IN ({_STATE}) ORDER BY id"
)
_HANDED_OUT = ", ".join(str(int(kind)) for kind in HANDED_OUT_KINDS)
JOURNAL_WITH_DELIVERIES: Final = JOURNAL.replace("kind IN (", f"kind IN ({_HANDED_OUT}, ")
# Whose deliveries count: too many do no harm, so policies are not matched against names.
QUEUES_TO_FOLD: Final = (
    "SELECT id, snapshot_event, kind='quorum' OR arguments LIKE '%\"x-delivery-limit\"%'"
    " OR EXISTS (SELECT 1 FROM policies WHERE definition LIKE '%\"delivery-limit\"%')"
    " FROM queues WHERE durable=1 AND deleted_ms IS NULL"
)
QUEUES_IN_HISTORY_END: Final = (
    "UPDATE queues SET deleted_ms=? WHERE durable=0 AND deleted_ms IS NULL"
)
ORIGINS_END: Final = "UPDATE origins SET closed_ms=? WHERE closed_ms IS NULL"
LAST_MESSAGE: Final = "SELECT coalesce(max(id), 0) FROM messages"
LAST_DELIVERED: Final = "SELECT coalesce(max(delivered_to), 0) FROM queues"
LAST_EVENT: Final = "SELECT coalesce(max(id), 0) FROM events"
LAST_QUEUE: Final = "SELECT coalesce(max(id), 0) FROM queues"
LAST_ORIGIN: Final = "SELECT coalesce(max(id), 0) FROM origins"

# -- retention -----------------------------------------------------------------------------------

NEXT_MESSAGE: Final = "SELECT min(id) FROM messages WHERE id>? AND id<=?"
SLICE_TIMES: Final = "SELECT min(time_ms), max(time_ms) FROM messages WHERE id BETWEEN ? AND ?"
DROP_SLICE: Final = (
    "DELETE FROM messages WHERE id BETWEEN ? AND ? AND time_ms<?"
    " AND id NOT IN (SELECT value FROM json_each(?))"
)
DROP_LATE: Final = "DELETE FROM messages WHERE id IN (SELECT value FROM json_each(?))"
DROP_UNKEPT: Final = (
    "DELETE FROM messages WHERE id BETWEEN ? AND ? AND keep=0"
    " AND id NOT IN (SELECT value FROM json_each(?))"
)
STRIP_SLICE: Final = (
    "UPDATE messages SET body=NULL, body_crc=0"
    " WHERE id BETWEEN ? AND ? AND keep=1 AND body IS NOT NULL"
    " AND id NOT IN (SELECT value FROM json_each(?))"
)
EVENT_SLICE: Final = (
    "SELECT max(id), min(time_ms) FROM"
    " (SELECT id, time_ms FROM events WHERE id>? AND id<? ORDER BY id LIMIT ?)"
)
DROP_EVENTS: Final = (
    "DELETE FROM events WHERE id>? AND id<=? AND time_ms<? AND NOT EXISTS"
    " (SELECT 1 FROM queues WHERE queues.id=events.queue_id AND queues.deleted_ms IS NULL"
    " AND events.id>=queues.snapshot_event)"
)
DROP_ORIGINS: Final = "DELETE FROM origins WHERE closed_ms<? AND id<(SELECT max(id) FROM origins)"
DROP_QUEUES: Final = (
    "DELETE FROM queues WHERE deleted_ms<? AND id<(SELECT max(id) FROM queues)"
    " AND NOT EXISTS (SELECT 1 FROM events WHERE events.queue_id=queues.id)"
)
CONTENT_RANGE: Final = (
    "SELECT coalesce(a.id, 0), coalesce(b.id, 0), coalesce(a.time_ms, 0), coalesce(b.time_ms, 0)"
    " FROM (SELECT min(id) AS low, max(id) AS high FROM messages)"
    " LEFT JOIN messages a ON a.id=low LEFT JOIN messages b ON b.id=high"
)

# -- one message's life --------------------------------------------------------------------------

_ORIGIN = (
    'o.id, o.kind, o.vhost, o."user", o.connection, o.channel, o.consumer_tag, o.created_ms,'
    " o.closed_ms"
)
ONE_MESSAGE: Final = (
    "SELECT m.id, m.time_ms, m.exchange, m.routing_key, m.properties, m.body, m.size, m.keep,"  # noqa: S608
    f" {_ORIGIN} FROM messages m LEFT JOIN origins o ON o.id=m.origin WHERE m.id=?"
)
EVENTS_OF_MESSAGE: Final = (
    "SELECT e.time_ms, e.kind, e.queue_id, q.vhost, q.name, q.kind, e.detail, e.ids, e.sizes,"  # noqa: S608
    f" {_ORIGIN} FROM events e LEFT JOIN queues q ON q.id=e.queue_id"
    " LEFT JOIN origins o ON o.id=e.actor"
    " WHERE e.first_id<=? AND e.last_id>=? AND instr(e.ids, ?)>0"
    f" AND e.kind<>{int(EventKind.SNAPSHOT)} ORDER BY e.time_ms, e.id"
)
FIND_PROPERTIES: Final = (
    "SELECT id, properties FROM messages WHERE instr(properties, ?)>0 ORDER BY id DESC LIMIT ?"
)
OLDEST_HISTORY: Final = (
    "SELECT min(time_ms) FROM (SELECT * FROM (SELECT time_ms FROM messages ORDER BY id LIMIT 1)"
    " UNION ALL SELECT * FROM (SELECT time_ms FROM events ORDER BY id LIMIT 1))"
)
WAS_THERE_BEFORE: Final = (
    "SELECT EXISTS (SELECT 1 FROM origins WHERE vhost=? AND created_ms<?)"
    " OR EXISTS (SELECT 1 FROM queues WHERE vhost=? AND deleted_ms<?)"
)
GONE_QUEUES: Final = "SELECT DISTINCT vhost, name FROM queues WHERE deleted_ms IS NOT NULL"
