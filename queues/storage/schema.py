"""The tables, as SQLAlchemy Core metadata.

`schema.sql` is this, compiled: `python -m queues.storage.schema > queues/storage/schema.sql`. A
start reads that file, because importing SQLAlchemy would take as long as everything else together
and 20 MB (docs/decisions/0006); migrations of older data use the metadata.

`events` is the journal: a queue's content is the fold of its events from its last snapshot on
(`queues.snapshot_event`). One row per (kind, queue, actor, detail) and commit: `ids` holds
`count` message ids as little-endian unsigned 64-bit integers, ascending or not; `sizes`, for the
kinds that carry them, as many little-endian unsigned 32-bit body sizes. `messages` holds content
once per message. Checksums are CRC-32C (see `packing`).

`queue_id` 0 means "no queue", `actor` and `origin` 0 mean "the broker itself".
Integers are 64 bits wide, times are Unix milliseconds, JSON is text, so that the same schema runs
on PostgreSQL.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

metadata = MetaData()

# SQLite aliases a column to its rowid only when the type is exactly INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")


def _number(name: str, default: str = "0") -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=default)


def _text(name: str, default: str = "") -> Column[str]:
    return Column(name, Text, nullable=False, server_default=default)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False, server_default="0")


def _key(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True, nullable=False)


meta = Table("meta", metadata, _key("key"), _text("value"))

messages = Table(
    "messages",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    _number("time_ms"),
    _number("origin"),
    _number("keep"),
    _number("size"),
    _text("exchange"),
    _text("routing_key"),
    Column("properties", LargeBinary, nullable=False),
    # NULL: the body was not kept, `size` still tells its length.
    Column("body", LargeBinary, nullable=True),
    _number("head_crc"),
    _number("body_crc"),
)

events = Table(
    "events",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    _number("time_ms"),
    _number("kind"),
    _number("queue_id"),
    _number("actor"),
    Column("detail", Text, nullable=True),
    _number("count"),
    _number("first_id"),
    _number("last_id"),
    Column("ids", LargeBinary, nullable=False),
    Column("sizes", LargeBinary, nullable=True),
    _number("crc"),
    Index("events_by_queue", "queue_id", "id"),
)

origins = Table(
    "origins",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    _number("kind"),
    _text("vhost"),
    _text("user"),
    _text("connection"),
    _number("channel"),
    _text("consumer_tag"),
    _number("created_ms"),
    Column("closed_ms", BigInteger, nullable=True),
)

queues = Table(
    "queues",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    _text("vhost"),
    _text("name"),
    _text("kind", "classic"),
    _flag("durable"),
    _flag("auto_delete"),
    _flag("exclusive"),
    _text("arguments", "{}"),
    _number("created_ms"),
    _number("delivered_to"),
    # The store's own: the first event the fold needs, and when the queue was deleted.
    _number("snapshot_event"),
    Column("deleted_ms", BigInteger, nullable=True),
)

exchanges = Table(
    "exchanges",
    metadata,
    _key("vhost"),
    _key("name"),
    _text("kind", "direct"),
    _flag("auto_delete"),
    _flag("internal"),
    _text("arguments", "{}"),
)

bindings = Table(
    "bindings",
    metadata,
    _key("vhost"),
    _key("source"),
    _key("destination"),
    _key("destination_kind"),
    _key("routing_key"),
    _key("arguments"),
)

vhosts = Table("vhosts", metadata, _key("name"), _text("options", "{}"))

users = Table(
    "users",
    metadata,
    _key("name"),
    _text("password_hash"),
    _text("hashing"),
    _text("tags"),
    _text("options", "{}"),
)

permissions = Table(
    "permissions",
    metadata,
    _key("user"),
    _key("vhost"),
    _text("configure"),
    _text("write"),
    _text("read"),
)

topic_permissions = Table(
    "topic_permissions",
    metadata,
    _key("user"),
    _key("vhost"),
    _key("exchange"),
    _text("write"),
    _text("read"),
)

policies = Table(
    "policies",
    metadata,
    _key("vhost"),
    _key("name"),
    Column("operator", Boolean, primary_key=True, nullable=False),
    _text("pattern"),
    _text("apply_to", "all"),
    _number("priority"),
    _text("definition", "{}"),
)

parameters = Table(
    "parameters",
    metadata,
    _key("vhost"),
    _key("component"),
    _key("name"),
    _text("value", "null"),
)

group_offsets = Table(
    "group_offsets",
    metadata,
    Column("queue_id", BigInteger, primary_key=True, autoincrement=False),
    _key("group_name"),
    _number("offset"),
    _number("time_ms"),
)


def compiled() -> str:
    """The whole schema as SQLite understands it."""
    made: list[CreateTable | CreateIndex] = []
    for table in metadata.sorted_tables:
        made.append(CreateTable(table))
        made += [CreateIndex(index) for index in table.indexes]
    texts = (str(one.compile(dialect=sqlite.dialect())) for one in made)
    lines = (line.rstrip() for text in texts for line in f"{text.strip()};".splitlines())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(compiled(), end="")  # noqa: T201
