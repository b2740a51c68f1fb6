"""The four tables as others see them: column names, types, meaning.

Invariant: an Arrow batch that leaves this package has exactly these columns (or the chosen ones,
in the order asked for) with exactly these types; Spark's types are derived from them, never
written twice. Names are part of the public interface: add columns, do not rename them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_sink.errors import SourceError

TIME = pa.timestamp("us", tz="UTC")
TEXT_MAP = pa.map_(
    pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=True)
)
TEXTS = pa.list_(pa.string())

_SPARK_NAMES = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    TIME: "timestamp",
    TEXT_MAP: "map<string,string>",
    TEXTS: "array<string>",
}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: pa.DataType
    meaning: str


def _table(*columns: tuple[str, pa.DataType, str]) -> tuple[Column, ...]:
    return tuple(Column(*column) for column in columns)


TABLES: dict[str, tuple[Column, ...]] = {
    "messages": _table(
        ("id", pa.int64(), "number of the message, in publish order over the whole broker"),
        ("time", TIME, "when the broker accepted it"),
        ("vhost", pa.string(), "virtual host"),
        ("user", pa.string(), "user that published it"),
        ("connection", pa.string(), "connection it came from"),
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
        ("headers", TEXT_MAP, "header fields; a value that is no text is JSON"),
        ("body", pa.binary(), "body, as published"),
        ("body_bytes", pa.int64(), "size of the body"),
        ("queue", pa.string(), "first of the queues; null when no queue took it"),
        ("queues", TEXTS, "queues that took it when it was published, the oldest queue first"),
    ),
    "events": _table(
        ("event_id", pa.int64(), "number of the recorded batch of events, in commit order"),
        ("position", pa.int32(), "place in that batch; (event_id, position) is unique"),
        ("time", TIME, "when it happened"),
        ("event", pa.string(), "what happened: published, delivered, acked, …"),
        ("vhost", pa.string(), "virtual host"),
        ("queue", pa.string(), "queue it happened in; null for published and unroutable"),
        ("message", pa.int64(), "number of the message; joins messages.id"),
        ("user", pa.string(), "user of the connection that did it"),
        ("connection", pa.string(), "connection that did it"),
        ("consumer_tag", pa.string(), "consumer that did it"),
        ("detail", pa.string(), "more about it, for example where it was dead-lettered to"),
        ("redelivered", pa.bool_(), "true for a delivery that was not the first"),
        ("body_bytes", pa.int64(), "size of the body, for enqueued alone"),
    ),
    "logs": _table(
        ("vhost", pa.string(), "virtual host"),
        ("log", pa.string(), "name of the log"),
        ("partition", pa.int32(), "partition of the log; 0 when it has one only"),
        ("offset", pa.int64(), "offset in the partition"),
        ("time", TIME, "when the broker accepted it"),
        ("exchange", pa.string(), "exchange published to; empty for the default exchange"),
        ("routing_key", pa.string(), "routing key"),
        ("headers", TEXT_MAP, "header fields; a value that is no text is JSON"),
        ("properties", TEXT_MAP, "the other properties by name, as text"),
        ("body", pa.binary(), "body, as published"),
        ("body_bytes", pa.int64(), "size of the body"),
    ),
    "queues": _table(
        ("queue_id", pa.int64(), "number of the queue; never used twice"),
        ("vhost", pa.string(), "virtual host"),
        ("queue", pa.string(), "name of the queue"),
        ("type", pa.string(), "classic or stream"),
        ("arguments", pa.string(), "arguments of the declaration, JSON"),
        ("deleted", TIME, "when it was deleted; null while it exists"),
    ),
}


def columns_of(table: str) -> tuple[Column, ...]:
    try:
        return TABLES[table]
    except KeyError:
        known = ", ".join(TABLES)
        raise SourceError(f"There is no table {table!r}: choose one of {known}.") from None


def arrow_schema(table: str, names: Sequence[str] | None = None) -> pa.Schema:
    """The Arrow schema of a table, or of some of its columns in the order given."""
    known = {column.name: column for column in columns_of(table)}
    chosen = list(known) if names is None else list(names)
    for name in chosen:
        if name not in known:
            raise SourceError(f"Table {table!r} has no column {name!r}: it has {', '.join(known)}.")
    return pa.schema([pa.field(name, known[name].type) for name in chosen])


def spark_ddl(table: str, names: Sequence[str] | None = None) -> str:
    """The same schema as Spark reads it, for example `id bigint, time timestamp`."""
    schema = arrow_schema(table, names)
    return ", ".join(f"`{field.name}` {_SPARK_NAMES[field.type]}" for field in schema)
