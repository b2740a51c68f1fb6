"""The tables, as SQLAlchemy Core metadata: the single source of the schema.

`schema.sql` and `compiled_statements.py` are generated from it and from `core_statements`. The
broker uses those files, because importing SQLAlchemy would take a third of the start-up time and
20 MB (docs/decisions/0011).

`events` is the journal: the content of a queue is the fold of its events from its last snapshot on
(`queues.snapshot_event`). There is one row per (kind, queue, actor, detail) and commit: `ids` holds
`count` message ids as little-endian unsigned 64-bit integers, in any order; `sizes`, for the kinds
that have them, holds as many body sizes as little-endian unsigned 32-bit integers. `message_packs`
holds content once per message, many messages per row (see `packs`). A large body is in consecutive
rows of `body_parts`, each of `PART_BYTES` except the last, and belongs to one message. Checksums
are CRC-32C.

`queue_id` 0 means "no queue"; `actor` and `origin` 0 mean "the broker itself".
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

message_packs = Table(
    "message_packs",
    metadata,
    # The id of the first message.
    Column("id", _Id, primary_key=True, autoincrement=False),
    _number("last_id"),
    _number("count"),
    _number("first_ms"),
    _number("last_ms"),
    _number("keep"),
    _number("body_bytes"),
    _number("has_bodies"),
    # The first row of `body_parts` with what is too large for this row, and how many there are.
    Column("first_part", BigInteger, nullable=True),
    _number("parts"),
    Column("runs", LargeBinary, nullable=False),
    Column("ids", LargeBinary, nullable=True),
    Column("sizes", LargeBinary, nullable=False),
    Column("crcs", LargeBinary, nullable=False),
    _number("body_crc"),
    _number("crc"),
    # The last column: queries that do not need it do not read its pages.
    Column("data", LargeBinary, nullable=True),
)
_packs_with_parts = Index(
    "packs_with_parts",
    message_packs.c.first_part,
    sqlite_where=message_packs.c.first_part.is_not(None),
)

body_parts = Table(
    "body_parts",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
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
    # Not in QueueDefinition: the first event the fold needs, and when the queue was deleted.
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

log_ends = Table(
    "log_ends",
    metadata,
    Column("queue_id", _Id, primary_key=True, autoincrement=False),
    _number("next_offset"),
    _number("reserved_to"),
)


def compiled() -> str:
    """The text of `schema.sql`."""
    elements: list[CreateTable | CreateIndex] = []
    for table in metadata.sorted_tables:
        elements.append(CreateTable(table))
        elements += [CreateIndex(index) for index in table.indexes]
    texts = (str(element.compile(dialect=sqlite.dialect())) for element in elements)
    lines = (line.rstrip() for text in texts for line in f"{text.strip()};".splitlines())
    return "\n".join(lines) + "\n"
