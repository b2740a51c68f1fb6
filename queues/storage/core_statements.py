"""Every fixed SQL statement, as a SQLAlchemy Core expression over the tables of `schema`.

The broker never imports this module: importing SQLAlchemy would cost a third of its start-up time
and 20 MB (docs/decisions/0011). It uses `compiled_statements`, which is generated from here:

    python -m leveret.queues.storage.core_statements

writes `compiled_statements.py` and `schema.sql`; a test fails when either is out of date.

A statement is a module constant with an upper-case name; the compiled constant has the same name.
A `bindparam` becomes a `?`, in the order in which it appears in the SQL; any other value becomes a
literal. Statements of several rows are compiled for one row (see `statements.for_rows`).

SQLite only: `group_concat`, `json_each`, `instr`, `pragma_*` and `sqlite_master`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ClauseElement,
    ColumnElement,
    Delete,
    FromClause,
    Insert,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    table,
    tuple_,
    union_all,
    update,
    values,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from leveret.model.definitions import DEFINITION_TABLES, QueueDefinition
from leveret.model.history import DELIVERY_KINDS, INTERNAL_KINDS, STATE_KINDS, EventKind
from leveret.queues.storage import schema
from leveret.queues.storage.directory import SCHEMA_FILE
from leveret.queues.storage.schema import (
    body_parts,
    events,
    group_offsets,
    log_ends,
    message_packs,
    meta,
    metadata,
    origins,
    policies,
    queues,
)

COMPILED_FILE: Final = Path(__file__).with_name("compiled_statements.py")


def _listed(name: str) -> Select[tuple[Any]]:
    """The ids of a JSON array that is passed as one parameter."""
    return select(func.json_each(bindparam(name)).table_valued("value").c.value)


# -- tables and meta -----------------------------------------------------------------------------

_sqlite_master = table("sqlite_master", column("name"), column("type"))
_table_info = func.pragma_table_info(_sqlite_master.c.name).table_valued("name", name="info")

TABLE_NAMES = select(_sqlite_master.c.name).where(_sqlite_master.c.type == "table")
COLUMN_NAMES = select(_sqlite_master.c.name, _table_info.c.name).where(
    _sqlite_master.c.type == "table"
)
PAGE_COUNTS = select(
    func.pragma_page_count().table_valued("page_count").c.page_count,
    func.pragma_freelist_count().table_valued("freelist_count").c.freelist_count,
    func.pragma_page_size().table_valued("page_size").c.page_size,
)

GET_META = select(meta.c.key, meta.c.value)
GET_SCHEMA_VERSION = select(meta.c.value).where(meta.c.key == "schema_version")
_set_meta = sqlite.insert(meta).values(key=bindparam("new_key"), value=bindparam("new_value"))
META_VALUE = select(meta.c.value).where(meta.c.key == bindparam("key"))
SET_META = _set_meta.on_conflict_do_update(
    index_elements=[meta.c.key], set_={"value": _set_meta.excluded.value}
)

# -- queues and their journals -------------------------------------------------------------------

RETIRE_QUEUES = (
    update(queues).values(deleted_ms=bindparam("now_ms")).where(queues.c.id.in_(_listed("ids")))
)
DELETE_GROUP_OFFSETS = delete(group_offsets).where(group_offsets.c.queue_id.in_(_listed("ids")))
DELETE_LOG_ENDS = delete(log_ends).where(log_ends.c.queue_id.in_(_listed("ids")))
SET_SNAPSHOT = (
    update(queues)
    .values(snapshot_event=bindparam("first_event"))
    .where(queues.c.id == bindparam("queue"))
)
TRIM_QUEUE = delete(events).where(
    events.c.queue_id == bindparam("queue"), events.c.id < bindparam("first_event")
)


def _journal(kinds: frozenset[EventKind]) -> Select[Any]:
    columns = ("time_ms", "kind", "queue_id", "actor", "detail", "count", "ids", "sizes", "crc")
    return (
        select(*(events.c[name] for name in columns))
        .where(
            events.c.queue_id == bindparam("queue"),
            events.c.id >= bindparam("first_event"),
            events.c.kind.in_(sorted(map(int, kinds))),
        )
        .order_by(events.c.id)
    )


JOURNAL = _journal(STATE_KINDS)
JOURNAL_WITH_DELIVERIES = _journal(STATE_KINDS | frozenset(DELIVERY_KINDS))

# The third column: whether deliveries are counted. Counting too many queues does no harm, so
# policies are not matched against queue names.
QUEUES_TO_FOLD = select(
    queues.c.id,
    queues.c.snapshot_event,
    or_(
        queues.c.kind == "quorum",
        queues.c.arguments.like('%"x-delivery-limit"%'),
        select(literal(1)).where(policies.c.definition.like('%"delivery-limit"%')).exists(),
    ),
).where(queues.c.durable, queues.c.deleted_ms.is_(None))
RETIRE_TRANSIENT_QUEUES = (
    update(queues)
    .values(deleted_ms=bindparam("now_ms"))
    .where(~queues.c.durable, queues.c.deleted_ms.is_(None))
)
CLOSE_ORIGINS = (
    update(origins).values(closed_ms=bindparam("now_ms")).where(origins.c.closed_ms.is_(None))
)


def _highest(numbers: ColumnElement[int]) -> Select[Any]:
    return select(func.coalesce(func.max(numbers), 0))


LAST_MESSAGE = select(func.coalesce(
    select(message_packs.c.last_id).order_by(message_packs.c.id.desc()).limit(1).scalar_subquery(),
    0,
))  # fmt: skip
LAST_PART = _highest(body_parts.c.id)
LAST_DELIVERED = _highest(queues.c.delivered_to)
LAST_EVENT = _highest(events.c.id)
LAST_QUEUE = _highest(queues.c.id)
LAST_ORIGIN = _highest(origins.c.id)

# -- content -------------------------------------------------------------------------------------


def _pack_of(message: ColumnElement[int]) -> ColumnElement[int]:
    """The id of the pack that has a message, if any has it."""
    older = message_packs.alias("older")
    return (
        select(func.max(older.c.id)).where(older.c.id <= message).correlate_except(older)
    ).scalar_subquery()


def _length(content: ColumnElement[Any]) -> ColumnElement[int]:
    return func.coalesce(func.length(content), -1)


def _joined(content: ColumnElement[Any]) -> ColumnElement[str]:
    return func.group_concat(func.coalesce(cast(content, Text), ""), "")


# Under load one result row costs one wait for the GIL, a thousand rows cost a thousand. Every
# aggregate of a query sees the rows in the same order, so the lengths tell where to cut.
# One aggregate per number: joining the numbers of a row first would cost four times as much.
_NUMBERS = tuple(
    message_packs.c[name]
    for name in (
        "id", "last_id", "count", "first_ms", "last_ms", "keep", "body_bytes", "has_bodies",
        "first_part", "parts", "body_crc", "crc",
    )
)  # fmt: skip
_BLOBS = tuple(message_packs.c[name] for name in ("runs", "ids", "sizes", "crcs", "data"))
_LOAD = select(
    *(func.group_concat(func.coalesce(number, -1)) for number in _NUMBERS),
    *(func.group_concat(_length(blob)) for blob in _BLOBS),
    *(_joined(blob) for blob in _BLOBS),
)
LOAD_PART = select(body_parts.c.data).where(body_parts.c.id == bindparam("part"))
_wanted = func.json_each(bindparam("ids")).table_valued("value", name="wanted")
_is_wanted = message_packs.c.id.in_(select(_pack_of(_wanted.c.value)).select_from(_wanted))
LOAD = _LOAD.where(_is_wanted)
LOAD_RUN = _LOAD.where(
    message_packs.c.id >= func.coalesce(_pack_of(bindparam("first")), 0),
    message_packs.c.id <= bindparam("last"),
)

NEXT_PACK = (
    select(message_packs.c.id, message_packs.c.last_id)
    .where(message_packs.c.id > bindparam("after"), message_packs.c.id <= bindparam("upto"))
    .order_by(message_packs.c.id)
    .limit(1)
)
PACK_INDEX = select(*(each for each in message_packs.c if each.name != "data")).where(
    message_packs.c.id == bindparam("pack")
)

# -- retention -----------------------------------------------------------------------------------

# What retention looks at before it reads whole packs.
_packs_to_trim = select(
    *(
        message_packs.c[name]
        for name in ("id", "last_id", "count", "first_ms", "last_ms", "keep", "has_bodies")
    ),
    func.coalesce(func.length(message_packs.c.data), 0),
)
PACKS_TO_TRIM = (
    _packs_to_trim.where(
        message_packs.c.id > bindparam("after"), message_packs.c.last_id <= bindparam("upto")
    )
    .order_by(message_packs.c.id)
    .limit(bindparam("count"))
)
PACKS_OF_MESSAGES = _packs_to_trim.where(_is_wanted)
READ_PACK = select(message_packs).where(message_packs.c.id == bindparam("pack"))
DELETE_PACKS = delete(message_packs).where(message_packs.c.id.in_(_listed("ids")))

# Parts that belong to no message; `waiting` are those whose message is not stored yet. A body has
# at most 512 parts.
_is_part_of_a_message = (
    select(literal(1))
    .where(
        message_packs.c.first_part > body_parts.c.id - 512,
        message_packs.c.first_part <= body_parts.c.id,
        body_parts.c.id < message_packs.c.first_part + message_packs.c.parts,
    )
    .exists()
)
UNUSED_PARTS = (
    select(body_parts.c.id)
    .where(~_is_part_of_a_message, body_parts.c.id.not_in(_listed("waiting")))
    .limit(bindparam("count"))
)
DELETE_PARTS = delete(body_parts).where(body_parts.c.id.in_(_listed("ids")))
_event_slice = (
    select(events.c.id, events.c.time_ms)
    .where(events.c.id > bindparam("after"), events.c.id < bindparam("before"))
    .order_by(events.c.id)
    .limit(bindparam("count"))
    .subquery("slice")
)
EVENT_SLICE = select(func.max(_event_slice.c.id), func.min(_event_slice.c.time_ms))
_INTERNAL = sorted(map(int, INTERNAL_KINDS))
_needed_by_a_replay = select(literal(1)).where(
    queues.c.id == events.c.queue_id,
    queues.c.deleted_ms.is_(None),
    events.c.id >= queues.c.snapshot_event,
)
DELETE_EVENTS = (
    delete(events)
    .where(
        events.c.id > bindparam("after"),
        events.c.id <= bindparam("last"),
        events.c.time_ms < bindparam("before_ms"),
        ~_needed_by_a_replay.exists(),
    )
    .returning(events.c.id, events.c.kind.not_in(_INTERNAL))
)
# The newest row stays, so that its id is never used again.
_last_origin, _last_queue = origins.alias("newer"), queues.alias("newer")
DELETE_ORIGINS = delete(origins).where(
    origins.c.closed_ms < bindparam("before_ms"),
    origins.c.id < select(func.max(_last_origin.c.id)).scalar_subquery(),
)
DELETE_QUEUES = delete(queues).where(
    queues.c.deleted_ms < bindparam("before_ms"),
    queues.c.id < select(func.max(_last_queue.c.id)).scalar_subquery(),
    ~select(literal(1)).where(events.c.queue_id == queues.c.id).exists(),
)


def _first_and_last(rows: Table) -> tuple[FromClause, FromClause, FromClause]:
    """The row with the lowest id, the row with the highest, and the join that yields both.

    It yields one row also when the table is empty.
    """
    bounds = select(func.min(rows.c.id).label("low"), func.max(rows.c.id).label("high")).subquery(
        "bounds"
    )
    first, last = rows.alias("first"), rows.alias("last")
    joined = bounds.outerjoin(first, first.c.id == bounds.c.low).outerjoin(
        last, last.c.id == bounds.c.high
    )
    return first, last, joined


_first, _last, _both = _first_and_last(message_packs)
CONTENT_RANGE = select(
    *(
        func.coalesce(number, 0)
        for number in (_first.c.id, _last.c.last_id, _first.c.first_ms, _last.c.last_ms)
    )
).select_from(_both)

# -- history -------------------------------------------------------------------------------------

PACK_OF_MESSAGE = select(message_packs).where(
    message_packs.c.id == _pack_of(bindparam("message")),
    message_packs.c.last_id >= bindparam("same_message"),
)
ONE_ORIGIN = select(*origins.c).where(origins.c.id == bindparam("origin"))
EVENTS_OF_MESSAGE = (
    select(
        events.c.time_ms, events.c.kind, events.c.queue_id,
        queues.c.vhost, queues.c.name, queues.c.kind,
        events.c.detail, events.c.ids, events.c.sizes,
        *origins.c,
    )
    .select_from(
        events.outerjoin(queues, queues.c.id == events.c.queue_id).outerjoin(
            origins, origins.c.id == events.c.actor
        )
    )
    .where(
        events.c.first_id <= bindparam("message"),
        events.c.last_id >= bindparam("message"),
        func.instr(events.c.ids, bindparam("packed_id")) > 0,
        events.c.kind != EventKind.SNAPSHOT,
    )
    .order_by(events.c.time_ms, events.c.id)
)  # fmt: skip
FIND_BYTES = (
    select(message_packs)
    .where(
        or_(
            func.instr(message_packs.c.data, bindparam("bytes")) > 0,
            and_(message_packs.c.parts > 0, message_packs.c.data.is_(None)),
        )
    )
    .order_by(message_packs.c.id.desc())
)
_oldest = union_all(
    *(
        select(select(time.label("ms")).order_by(time.table.c.id).limit(1).subquery().c.ms)
        for time in (message_packs.c.first_ms, events.c.time_ms)
    )
).subquery("oldest")
OLDEST_HISTORY = select(func.min(_oldest.c.ms))
VHOST_EXISTED_BEFORE = select(
    or_(
        select(literal(1))
        .where(origins.c.vhost == bindparam("vhost"), origins.c.created_ms < bindparam("ms"))
        .exists(),
        select(literal(1))
        .where(queues.c.vhost == bindparam("vhost"), queues.c.deleted_ms < bindparam("ms"))
        .exists(),
    )
)
DELETED_QUEUES = (
    select(queues.c.vhost, queues.c.name).where(queues.c.deleted_ms.is_not(None)).distinct()
)
COUNT_MESSAGES = select(func.coalesce(func.sum(message_packs.c.count), 0))
COUNT_EVENTS = select(func.coalesce(func.sum(events.c.count), 0)).where(
    events.c.kind.not_in(_INTERNAL)
)
_first_event, _last_event, _both_events = _first_and_last(events)
EVENT_TIMES = select(_first_event.c.time_ms, _last_event.c.time_ms).select_from(_both_events)

# -- statements of many rows: compiled for one ---------------------------------------------------

INSERT_PACKS = insert(message_packs)
INSERT_PART = insert(body_parts)
INSERT_EVENTS = insert(events)


def _definition_columns(kind: type[object]) -> list[str]:
    return list(inspect.signature(kind).parameters)


def _insert_definition(kind: type[object]) -> sqlite.Insert:
    rows = metadata.tables[DEFINITION_TABLES[kind]]
    names = _definition_columns(kind)
    return sqlite.insert(rows).values({name: bindparam(f"new_{name}") for name in names})


def _upsert_definition(kind: type[object]) -> Insert:
    """Columns of the table that the definition does not have keep their value."""
    inserted, keys = _insert_definition(kind), metadata.tables[DEFINITION_TABLES[kind]].primary_key
    others = [name for name in _definition_columns(kind) if name not in keys]
    if not others:
        return inserted.on_conflict_do_nothing(index_elements=list(keys))
    changes = {name: inserted.excluded[name] for name in others}
    return inserted.on_conflict_do_update(index_elements=list(keys), set_=changes)


INSERT_MISSING_QUEUES = _insert_definition(QueueDefinition).on_conflict_do_nothing(
    index_elements=[queues.c.id]
)


def _delete_definition(kind: type[object]) -> Delete:
    """SQLite searches the primary key only for a SELECT: `IN (VALUES …)` scans the whole table."""
    rows = metadata.tables[DEFINITION_TABLES[kind]]
    names = [key.name for key in rows.primary_key]
    one_key: tuple[BindParameter[Any], ...] = tuple(bindparam(f"old_{name}") for name in names)
    keys = values(*(column(name) for name in names), name="keys").data([one_key]).cte("keys")
    return delete(rows).where(tuple_(*rows.primary_key).in_(select(keys)))


def _select_definitions(kind: type[object]) -> Select[Any]:
    """All rows; of queues only those to recover: durable and not deleted."""
    rows = metadata.tables[DEFINITION_TABLES[kind]]
    chosen = select(*(rows.c[name] for name in _definition_columns(kind)))
    if kind is QueueDefinition:
        return chosen.where(queues.c.deleted_ms.is_(None), queues.c.durable)
    return chosen


DEFINITION_STATEMENTS: Final[Mapping[str, Mapping[str, ClauseElement]]] = {
    name: {table_name: make(kind) for kind, table_name in DEFINITION_TABLES.items()}
    for name, make in (
        ("UPSERT_DEFINITIONS", _upsert_definition),
        ("DELETE_DEFINITIONS", _delete_definition),
        ("SELECT_DEFINITIONS", _select_definitions),
    )
}


# -- compiling -----------------------------------------------------------------------------------


class _Compiler(SQLiteCompiler):
    """Renders values as literals; parameters without a value, and keys to delete, become `?`."""

    def visit_bindparam(self, bindparam: BindParameter[Any], *args: Any, **options: Any) -> str:
        is_parameter = bindparam.required or (bindparam.expanding and not bindparam.unique)
        options["literal_binds"] = not is_parameter
        render: Callable[..., str] = super().visit_bindparam
        return render(bindparam, *args, **options)


class _Dialect(SQLiteDialect_pysqlite):
    statement_compiler = _Compiler
    supports_statement_cache = True


def compile_sql(statement: ClauseElement) -> str:
    options = {"render_postcompile": True}
    return " ".join(str(statement.compile(dialect=_Dialect(), compile_kwargs=options)).split())


def compiled_module() -> str:
    """The text of `compiled_statements.py`."""
    return "\n".join(_compiled_lines())


def _compiled_lines() -> Iterator[str]:
    yield '"""Generated from `core_statements`; see there. Do not edit."""\n'
    yield "# fmt: off"
    yield "from typing import Final\n"
    tables = metadata.sorted_tables
    columns = {rows.name: tuple(rows.columns.keys()) for rows in tables}
    keys = {rows.name: tuple(key.name for key in rows.primary_key) for rows in tables}
    for name, names in (("COLUMNS", columns), ("PRIMARY_KEYS", keys)):
        yield from _dictionary(name, "tuple[str, ...]", {k: _tuple(v) for k, v in names.items()})
    for name, statement in globals().items():
        if name[0] != "_" and name.isupper() and isinstance(statement, ClauseElement):
            yield f"{name}: Final = {_quoted(compile_sql(statement))}"
    for name, statements in DEFINITION_STATEMENTS.items():
        compiled = {key: _quoted(compile_sql(made)) for key, made in statements.items()}
        yield from _dictionary(name, "str", compiled)
    yield ""


def _dictionary(name: str, kind: str, items: Mapping[str, str]) -> Iterator[str]:
    yield f"{name}: Final[dict[str, {kind}]] = {{"
    for key, text in items.items():
        yield f'    "{key}": {text},'
    yield "}"


def _tuple(names: tuple[str, ...]) -> str:
    lines = wrap(", ".join(f'"{name}"' for name in names) + ",", 90)
    return "(\n        " + "\n        ".join(lines) + "\n    )"


def _quoted(sql: str) -> str:
    indent = " " * 40  # at least the length of what stands before the string
    lines = wrap(sql, 97, initial_indent=indent, break_long_words=False, break_on_hyphens=False)
    return '"""' + "\n".join(lines).lstrip() + '"""'


if __name__ == "__main__":
    COMPILED_FILE.write_text(compiled_module(), encoding="utf-8")
    SCHEMA_FILE.write_text(schema.compiled(), encoding="utf-8")
