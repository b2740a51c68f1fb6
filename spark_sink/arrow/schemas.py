"""The four tables as readers see them: column names, types, meaning.

Invariant: an Arrow batch that leaves this package has exactly these columns (or the chosen ones,
in the requested order) with exactly these types; Spark's types are derived from them, never
written twice. Names are part of the public interface: add columns, do not rename them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from leveret.spark_sink.errors import SourceError

TIME = pa.timestamp("us", tz="UTC")
TEXT_MAP = pa.map_(
    pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=True)
)
TEXTS = pa.list_(pa.string())
TYPED_VALUE = pa.struct([("type", pa.string()), ("value", pa.string()), ("bytes", pa.binary())])
TYPED_MAP = pa.map_(
    pa.field("key", pa.string(), nullable=False), pa.field("value", TYPED_VALUE, nullable=True)
)

_SPARK_NAMES = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    TIME: "timestamp",
    TEXT_MAP: "map<string,string>",
    TEXTS: "array<string>",
    TYPED_MAP: "map<string,struct<type:string,value:string,bytes:binary>>",
}
CSV_TEXT_TYPES = tuple(_SPARK_NAMES[kind] for kind in (TYPED_MAP, TEXT_MAP, TEXTS, pa.binary()))
"""Types that are written to CSV as text."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: pa.DataType
    meaning: str


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What readers need to know about a table without opening a source."""

    name: str
    columns: tuple[Column, ...]
    partition_columns: tuple[str, ...] = ()
    """The directories of an export, outermost first; `date` is the day of `time`."""
    name_filters: Mapping[str, str] = field(default_factory=dict)
    """Columns that can be filtered by name, and the field of `Selection` that does it."""
    is_stream: bool = True
    """Rows are only appended, so the table can be read as a stream; such rows have a `time`."""

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def _columns(*columns: tuple[str, pa.DataType, str]) -> tuple[Column, ...]:
    return tuple(Column(*column) for column in columns)


MESSAGES = TableSchema(
    "messages",
    _columns(
        ("id", pa.int64(), "number of the message, in publish order over the whole broker"),
        ("time", TIME, "when the broker accepted it"),
        ("vhost", pa.string(), "virtual host"),
        ("user", pa.string(), "user that published it"),
        ("connection", pa.string(), "connection that published it"),
        ("exchange", pa.string(), "exchange published to; empty for the default exchange"),
        ("routing_key", pa.string(), "routing key"),
        ("message_id", pa.string(), "property message-id"),
        ("correlation_id", pa.string(), "property correlation-id"),
        ("content_type", pa.string(), "property content-type"),
        ("content_encoding", pa.string(), "property content-encoding"),
        ("delivery_mode", pa.int32(), "property delivery-mode: 1 transient, 2 persistent"),
        ("priority", pa.int32(), "property priority"),
        ("reply_to", pa.string(), "property reply-to"),
        ("expiration", pa.string(), "property expiration, milliseconds as text"),
        ("timestamp", pa.int64(), "property timestamp, seconds as the publisher sent them"),
        ("type", pa.string(), "property type"),
        ("app_id", pa.string(), "property app-id"),
        ("headers", TEXT_MAP, "header fields; a value that is not text is JSON"),
        ("body", pa.binary(), "body, as published"),
        ("body_bytes", pa.int64(), "size of the body"),
        ("queue", pa.string(), "first of the queues; null if it was routed to no queue"),
        ("queues", TEXTS, "queues it was routed to when published, the oldest queue first"),
        ("typed_headers", TYPED_MAP, "header fields with their types and bytes"),
        ("parent", pa.int64(), "id of the message that this one, such as a dead letter, copies"),
    ),
    partition_columns=("date", "queue"),
    name_filters={"vhost": "vhosts", "queue": "queues"},
)

EVENTS = TableSchema(
    "events",
    _columns(
        ("event_id", pa.int64(), "number of the recorded batch of events, in commit order"),
        ("position", pa.int32(), "index in that batch; (event_id, position) is unique"),
        ("time", TIME, "when it happened"),
        ("event", pa.string(), "what happened: published, delivered, acked, …"),
        ("vhost", pa.string(), "virtual host"),
        ("queue", pa.string(), "queue it happened in; null for published and unroutable"),
        ("message", pa.int64(), "number of the message; joins messages.id"),
        ("user", pa.string(), "user of the connection that caused it"),
        ("connection", pa.string(), "connection that caused it"),
        ("consumer_tag", pa.string(), "consumer that caused it"),
        ("detail", pa.string(), "more about it, for example where it was dead-lettered to"),
        ("redelivered", pa.bool_(), "true for a delivery that was not the first"),
        ("body_bytes", pa.int64(), "size of the body, for enqueued only"),
    ),
    partition_columns=("date", "queue"),
    name_filters={"vhost": "vhosts", "queue": "queues", "event": "kinds"},
)

LOGS = TableSchema(
    "logs",
    _columns(
        ("vhost", pa.string(), "virtual host"),
        ("log", pa.string(), "name of the log"),
        ("partition", pa.int32(), "partition of the log; 0 if the log has only one"),
        ("offset", pa.int64(), "offset in the partition"),
        ("time", TIME, "when the broker accepted it"),
        ("exchange", pa.string(), "exchange published to; empty for the default exchange"),
        ("routing_key", pa.string(), "routing key"),
        ("headers", TEXT_MAP, "header fields; a value that is not text is JSON"),
        ("properties", TEXT_MAP, "the other properties by name, as text"),
        ("body", pa.binary(), "body, as published"),
        ("body_bytes", pa.int64(), "size of the body"),
        ("typed_headers", TYPED_MAP, "header fields with their types and bytes"),
    ),
    partition_columns=("date", "log", "partition"),
    name_filters={"vhost": "vhosts", "log": "queues"},
)

QUEUES = TableSchema(
    "queues",
    _columns(
        ("queue_id", pa.int64(), "number of the queue; never used twice"),
        ("vhost", pa.string(), "virtual host"),
        ("queue", pa.string(), "name of the queue"),
        ("type", pa.string(), "classic or stream"),
        ("arguments", pa.string(), "arguments of the declaration, JSON"),
        ("deleted", TIME, "when it was deleted; null while it exists"),
    ),
    name_filters={"vhost": "vhosts", "queue": "queues"},
    is_stream=False,
)

SCHEMAS = {schema.name: schema for schema in (MESSAGES, EVENTS, LOGS, QUEUES)}


def schema_of(table: str) -> TableSchema:
    """The schema of a table; SourceError if there is no such table."""
    try:
        return SCHEMAS[table]
    except KeyError:
        known = ", ".join(SCHEMAS)
        raise SourceError(f"There is no table {table!r}: choose one of {known}.") from None


def arrow_schema(table: str, names: Sequence[str] | None = None) -> pa.Schema:
    """The Arrow schema of a table, or of some of its columns in the order given."""
    known = {column.name: column for column in schema_of(table).columns}
    chosen = list(known) if names is None else list(names)
    for name in chosen:
        if name not in known:
            raise SourceError(f"Table {table!r} has no column {name!r}: it has {', '.join(known)}.")
    return pa.schema([pa.field(name, known[name].type) for name in chosen])


def spark_ddl(table: str, names: Sequence[str] | None = None) -> str:
    """The same schema as Spark reads it, for example `id bigint, time timestamp`."""
    schema = arrow_schema(table, names)
    return ", ".join(f"`{field.name}` {_SPARK_NAMES[field.type]}" for field in schema)
