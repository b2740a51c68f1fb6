"""Generated from `core_statements`; see there. Do not edit."""

# fmt: off
from typing import Final

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "bindings": (
        "vhost", "source", "destination", "destination_kind", "routing_key", "arguments",
    ),
    "body_parts": (
        "id", "data",
    ),
    "events": (
        "id", "time_ms", "kind", "queue_id", "actor", "detail", "count", "first_id", "last_id",
        "ids", "sizes", "crc",
    ),
    "exchanges": (
        "vhost", "name", "kind", "auto_delete", "internal", "arguments",
    ),
    "group_offsets": (
        "queue_id", "group_name", "offset", "time_ms",
    ),
    "log_ends": (
        "queue_id", "next_offset", "reserved_to",
    ),
    "message_packs": (
        "id", "last_id", "count", "first_ms", "last_ms", "keep", "body_bytes", "has_bodies",
        "first_part", "parts", "runs", "ids", "sizes", "crcs", "body_crc", "crc", "data",
    ),
    "meta": (
        "key", "value",
    ),
    "origins": (
        "id", "kind", "vhost", "user", "connection", "channel", "consumer_tag", "created_ms",
        "closed_ms",
    ),
    "parameters": (
        "vhost", "component", "name", "value",
    ),
    "permissions": (
        "user", "vhost", "configure", "write", "read",
    ),
    "policies": (
        "vhost", "name", "operator", "pattern", "apply_to", "priority", "definition",
    ),
    "queues": (
        "id", "vhost", "name", "kind", "durable", "auto_delete", "exclusive", "arguments",
        "created_ms", "delivered_to", "snapshot_event", "deleted_ms",
    ),
    "topic_permissions": (
        "user", "vhost", "exchange", "write", "read",
    ),
    "users": (
        "name", "password_hash", "hashing", "tags", "options",
    ),
    "vhosts": (
        "name", "options",
    ),
}
PRIMARY_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "bindings": (
        "vhost", "source", "destination", "destination_kind", "routing_key", "arguments",
    ),
    "body_parts": (
        "id",
    ),
    "events": (
        "id",
    ),
    "exchanges": (
        "vhost", "name",
    ),
    "group_offsets": (
        "queue_id", "group_name",
    ),
    "log_ends": (
        "queue_id",
    ),
    "message_packs": (
        "id",
    ),
    "meta": (
        "key",
    ),
    "origins": (
        "id",
    ),
    "parameters": (
        "vhost", "component", "name",
    ),
    "permissions": (
        "user", "vhost",
    ),
    "policies": (
        "vhost", "name", "operator",
    ),
    "queues": (
        "id",
    ),
    "topic_permissions": (
        "user", "vhost", "exchange",
    ),
    "users": (
        "name",
    ),
    "vhosts": (
        "name",
    ),
}
TABLE_NAMES: Final = """SELECT sqlite_master.name FROM sqlite_master WHERE
sqlite_master.type = 'table'"""
COLUMN_NAMES: Final = """SELECT sqlite_master.name, info.name AS name_1 FROM
sqlite_master, pragma_table_info(sqlite_master.name) AS info WHERE sqlite_master.type = 'table'"""
PAGE_COUNTS: Final = """SELECT anon_1.page_count, anon_2.freelist_count,
anon_3.page_size FROM pragma_page_count() AS anon_1, pragma_freelist_count() AS anon_2,
pragma_page_size() AS anon_3"""
GET_META: Final = """SELECT meta."key", meta.value FROM meta"""
GET_SCHEMA_VERSION: Final = """SELECT meta.value FROM meta WHERE meta."key" =
'schema_version'"""
META_VALUE: Final = """SELECT meta.value FROM meta WHERE meta."key" = ?"""
SET_META: Final = """INSERT INTO meta ("key", value) VALUES (?, ?) ON CONFLICT
("key") DO UPDATE SET value = excluded.value"""
RETIRE_QUEUES: Final = """UPDATE queues SET deleted_ms=? WHERE queues.id IN (SELECT
anon_1.value FROM json_each(?) AS anon_1)"""
DELETE_GROUP_OFFSETS: Final = """DELETE FROM group_offsets WHERE group_offsets.queue_id IN
(SELECT anon_1.value FROM json_each(?) AS anon_1)"""
DELETE_LOG_ENDS: Final = """DELETE FROM log_ends WHERE log_ends.queue_id IN (SELECT
anon_1.value FROM json_each(?) AS anon_1)"""
SET_SNAPSHOT: Final = """UPDATE queues SET snapshot_event=? WHERE queues.id = ?"""
TRIM_QUEUE: Final = """DELETE FROM events WHERE events.queue_id = ? AND
events.id < ?"""
JOURNAL: Final = """SELECT events.time_ms, events.kind, events.queue_id,
events.actor, events.detail, events.count, events.ids, events.sizes, events.crc FROM events WHERE
events.queue_id = ? AND events.id >= ? AND events.kind IN (3, 10, 11, 12, 13, 14, 15, 16, 17, 18,
30) ORDER BY events.id"""
JOURNAL_WITH_DELIVERIES: Final = """SELECT events.time_ms, events.kind, events.queue_id,
events.actor, events.detail, events.count, events.ids, events.sizes, events.crc FROM events WHERE
events.queue_id = ? AND events.id >= ? AND events.kind IN (3, 4, 5, 6, 10, 11, 12, 13, 14, 15,
16, 17, 18, 30) ORDER BY events.id"""
QUEUES_TO_FOLD: Final = """SELECT queues.id, queues.snapshot_event, queues.kind =
'quorum' OR queues.arguments LIKE '%"x-delivery-limit"%' OR (EXISTS (SELECT 1 AS anon_2 FROM
policies WHERE policies.definition LIKE '%"delivery-limit"%')) AS anon_1 FROM queues WHERE
queues.durable = 1 AND queues.deleted_ms IS NULL"""
RETIRE_TRANSIENT_QUEUES: Final = """UPDATE queues SET deleted_ms=? WHERE queues.durable = 0
AND queues.deleted_ms IS NULL"""
CLOSE_ORIGINS: Final = """UPDATE origins SET closed_ms=? WHERE origins.closed_ms IS
NULL"""
LAST_MESSAGE: Final = """SELECT coalesce((SELECT message_packs.last_id FROM
message_packs ORDER BY message_packs.id DESC LIMIT 1 OFFSET 0), 0) AS coalesce_1"""
LAST_PART: Final = """SELECT coalesce(max(body_parts.id), 0) AS coalesce_1 FROM
body_parts"""
LAST_DELIVERED: Final = """SELECT coalesce(max(queues.delivered_to), 0) AS
coalesce_1 FROM queues"""
LAST_EVENT: Final = """SELECT coalesce(max(events.id), 0) AS coalesce_1 FROM
events"""
LAST_QUEUE: Final = """SELECT coalesce(max(queues.id), 0) AS coalesce_1 FROM
queues"""
LAST_ORIGIN: Final = """SELECT coalesce(max(origins.id), 0) AS coalesce_1 FROM
origins"""
LOAD_PART: Final = """SELECT body_parts.data FROM body_parts WHERE
body_parts.id = ?"""
LOAD: Final = """SELECT group_concat(coalesce(message_packs.id, -1)) AS
group_concat_1, group_concat(coalesce(message_packs.last_id, -1)) AS group_concat_2,
group_concat(coalesce(message_packs.count, -1)) AS group_concat_3,
group_concat(coalesce(message_packs.first_ms, -1)) AS group_concat_4,
group_concat(coalesce(message_packs.last_ms, -1)) AS group_concat_5,
group_concat(coalesce(message_packs.keep, -1)) AS group_concat_6,
group_concat(coalesce(message_packs.body_bytes, -1)) AS group_concat_7,
group_concat(coalesce(message_packs.has_bodies, -1)) AS group_concat_8,
group_concat(coalesce(message_packs.first_part, -1)) AS group_concat_9,
group_concat(coalesce(message_packs.parts, -1)) AS group_concat_10,
group_concat(coalesce(message_packs.body_crc, -1)) AS group_concat_11,
group_concat(coalesce(message_packs.crc, -1)) AS group_concat_12,
group_concat(coalesce(length(message_packs.runs), -1)) AS group_concat_13,
group_concat(coalesce(length(message_packs.ids), -1)) AS group_concat_14,
group_concat(coalesce(length(message_packs.sizes), -1)) AS group_concat_15,
group_concat(coalesce(length(message_packs.crcs), -1)) AS group_concat_16,
group_concat(coalesce(length(message_packs.data), -1)) AS group_concat_17,
group_concat(coalesce(CAST(message_packs.runs AS TEXT), ''), '') AS group_concat_18,
group_concat(coalesce(CAST(message_packs.ids AS TEXT), ''), '') AS group_concat_19,
group_concat(coalesce(CAST(message_packs.sizes AS TEXT), ''), '') AS group_concat_20,
group_concat(coalesce(CAST(message_packs.crcs AS TEXT), ''), '') AS group_concat_21,
group_concat(coalesce(CAST(message_packs.data AS TEXT), ''), '') AS group_concat_22 FROM
message_packs WHERE message_packs.id IN (SELECT (SELECT max(older.id) AS max_1 FROM message_packs
AS older WHERE older.id <= wanted.value) AS anon_1 FROM json_each(?) AS wanted)"""
LOAD_RUN: Final = """SELECT group_concat(coalesce(message_packs.id, -1)) AS
group_concat_1, group_concat(coalesce(message_packs.last_id, -1)) AS group_concat_2,
group_concat(coalesce(message_packs.count, -1)) AS group_concat_3,
group_concat(coalesce(message_packs.first_ms, -1)) AS group_concat_4,
group_concat(coalesce(message_packs.last_ms, -1)) AS group_concat_5,
group_concat(coalesce(message_packs.keep, -1)) AS group_concat_6,
group_concat(coalesce(message_packs.body_bytes, -1)) AS group_concat_7,
group_concat(coalesce(message_packs.has_bodies, -1)) AS group_concat_8,
group_concat(coalesce(message_packs.first_part, -1)) AS group_concat_9,
group_concat(coalesce(message_packs.parts, -1)) AS group_concat_10,
group_concat(coalesce(message_packs.body_crc, -1)) AS group_concat_11,
group_concat(coalesce(message_packs.crc, -1)) AS group_concat_12,
group_concat(coalesce(length(message_packs.runs), -1)) AS group_concat_13,
group_concat(coalesce(length(message_packs.ids), -1)) AS group_concat_14,
group_concat(coalesce(length(message_packs.sizes), -1)) AS group_concat_15,
group_concat(coalesce(length(message_packs.crcs), -1)) AS group_concat_16,
group_concat(coalesce(length(message_packs.data), -1)) AS group_concat_17,
group_concat(coalesce(CAST(message_packs.runs AS TEXT), ''), '') AS group_concat_18,
group_concat(coalesce(CAST(message_packs.ids AS TEXT), ''), '') AS group_concat_19,
group_concat(coalesce(CAST(message_packs.sizes AS TEXT), ''), '') AS group_concat_20,
group_concat(coalesce(CAST(message_packs.crcs AS TEXT), ''), '') AS group_concat_21,
group_concat(coalesce(CAST(message_packs.data AS TEXT), ''), '') AS group_concat_22 FROM
message_packs WHERE message_packs.id >= coalesce((SELECT max(older.id) AS max_1 FROM
message_packs AS older WHERE older.id <= ?), 0) AND message_packs.id <= ?"""
NEXT_PACK: Final = """SELECT message_packs.id, message_packs.last_id FROM
message_packs WHERE message_packs.id > ? AND message_packs.id <= ? ORDER BY message_packs.id
LIMIT 1 OFFSET 0"""
PACK_INDEX: Final = """SELECT message_packs.id, message_packs.last_id,
message_packs.count, message_packs.first_ms, message_packs.last_ms, message_packs.keep,
message_packs.body_bytes, message_packs.has_bodies, message_packs.first_part,
message_packs.parts, message_packs.runs, message_packs.ids, message_packs.sizes,
message_packs.crcs, message_packs.body_crc, message_packs.crc FROM message_packs WHERE
message_packs.id = ?"""
PACKS_TO_TRIM: Final = """SELECT message_packs.id, message_packs.last_id,
message_packs.count, message_packs.first_ms, message_packs.last_ms, message_packs.keep,
message_packs.has_bodies, coalesce(length(message_packs.data), 0) AS coalesce_1 FROM
message_packs WHERE message_packs.id > ? AND message_packs.last_id <= ? ORDER BY message_packs.id
LIMIT ? OFFSET 0"""
PACKS_OF_MESSAGES: Final = """SELECT message_packs.id, message_packs.last_id,
message_packs.count, message_packs.first_ms, message_packs.last_ms, message_packs.keep,
message_packs.has_bodies, coalesce(length(message_packs.data), 0) AS coalesce_1 FROM
message_packs WHERE message_packs.id IN (SELECT (SELECT max(older.id) AS max_1 FROM message_packs
AS older WHERE older.id <= wanted.value) AS anon_1 FROM json_each(?) AS wanted)"""
READ_PACK: Final = """SELECT message_packs.id, message_packs.last_id,
message_packs.count, message_packs.first_ms, message_packs.last_ms, message_packs.keep,
message_packs.body_bytes, message_packs.has_bodies, message_packs.first_part,
message_packs.parts, message_packs.runs, message_packs.ids, message_packs.sizes,
message_packs.crcs, message_packs.body_crc, message_packs.crc, message_packs.data FROM
message_packs WHERE message_packs.id = ?"""
DELETE_PACKS: Final = """DELETE FROM message_packs WHERE message_packs.id IN
(SELECT anon_1.value FROM json_each(?) AS anon_1)"""
UNUSED_PARTS: Final = """SELECT body_parts.id FROM body_parts WHERE NOT (EXISTS
(SELECT 1 AS anon_1 FROM message_packs WHERE message_packs.first_part > body_parts.id - 512 AND
message_packs.first_part <= body_parts.id AND body_parts.id < message_packs.first_part +
message_packs.parts)) AND (body_parts.id NOT IN (SELECT anon_2.value FROM json_each(?) AS
anon_2)) LIMIT ? OFFSET 0"""
DELETE_PARTS: Final = """DELETE FROM body_parts WHERE body_parts.id IN (SELECT
anon_1.value FROM json_each(?) AS anon_1)"""
EVENT_SLICE: Final = """SELECT max(slice.id) AS max_1, min(slice.time_ms) AS
min_1 FROM (SELECT events.id AS id, events.time_ms AS time_ms FROM events WHERE events.id > ? AND
events.id < ? ORDER BY events.id LIMIT ? OFFSET 0) AS slice"""
DELETE_EVENTS: Final = """DELETE FROM events WHERE events.id > ? AND events.id <= ?
AND events.time_ms < ? AND NOT (EXISTS (SELECT 1 AS anon_1 FROM queues WHERE queues.id =
events.queue_id AND queues.deleted_ms IS NULL AND events.id >= queues.snapshot_event)) RETURNING
id, (kind NOT IN (21, 30)) AS anon_2"""
DELETE_ORIGINS: Final = """DELETE FROM origins WHERE origins.closed_ms < ? AND
origins.id < (SELECT max(newer.id) AS max_1 FROM origins AS newer)"""
DELETE_QUEUES: Final = """DELETE FROM queues WHERE queues.deleted_ms < ? AND
queues.id < (SELECT max(newer.id) AS max_1 FROM queues AS newer) AND NOT (EXISTS (SELECT 1 AS
anon_1 FROM events WHERE events.queue_id = queues.id))"""
CONTENT_RANGE: Final = """SELECT coalesce(first.id, 0) AS coalesce_1,
coalesce(last.last_id, 0) AS coalesce_2, coalesce(first.first_ms, 0) AS coalesce_3,
coalesce(last.last_ms, 0) AS coalesce_4 FROM (SELECT min(message_packs.id) AS low,
max(message_packs.id) AS high FROM message_packs) AS bounds LEFT OUTER JOIN message_packs AS
first ON first.id = bounds.low LEFT OUTER JOIN message_packs AS last ON last.id = bounds.high"""
PACK_OF_MESSAGE: Final = """SELECT message_packs.id, message_packs.last_id,
message_packs.count, message_packs.first_ms, message_packs.last_ms, message_packs.keep,
message_packs.body_bytes, message_packs.has_bodies, message_packs.first_part,
message_packs.parts, message_packs.runs, message_packs.ids, message_packs.sizes,
message_packs.crcs, message_packs.body_crc, message_packs.crc, message_packs.data FROM
message_packs WHERE message_packs.id = (SELECT max(older.id) AS max_1 FROM message_packs AS older
WHERE older.id <= ?) AND message_packs.last_id >= ?"""
ONE_ORIGIN: Final = """SELECT origins.id, origins.kind, origins.vhost,
origins.user, origins.connection, origins.channel, origins.consumer_tag, origins.created_ms,
origins.closed_ms FROM origins WHERE origins.id = ?"""
EVENTS_OF_MESSAGE: Final = """SELECT events.time_ms, events.kind, events.queue_id,
queues.vhost, queues.name, queues.kind AS kind_1, events.detail, events.ids, events.sizes,
origins.id, origins.kind AS kind_2, origins.vhost AS vhost_1, origins.user, origins.connection,
origins.channel, origins.consumer_tag, origins.created_ms, origins.closed_ms FROM events LEFT
OUTER JOIN queues ON queues.id = events.queue_id LEFT OUTER JOIN origins ON origins.id =
events.actor WHERE events.first_id <= ? AND events.last_id >= ? AND instr(events.ids, ?) > 0 AND
events.kind != 30 ORDER BY events.time_ms, events.id"""
FIND_BYTES: Final = """SELECT message_packs.id, message_packs.last_id,
message_packs.count, message_packs.first_ms, message_packs.last_ms, message_packs.keep,
message_packs.body_bytes, message_packs.has_bodies, message_packs.first_part,
message_packs.parts, message_packs.runs, message_packs.ids, message_packs.sizes,
message_packs.crcs, message_packs.body_crc, message_packs.crc, message_packs.data FROM
message_packs WHERE instr(message_packs.data, ?) > 0 OR message_packs.parts > 0 AND
message_packs.data IS NULL ORDER BY message_packs.id DESC"""
OLDEST_HISTORY: Final = """SELECT min(oldest.ms) AS min_1 FROM (SELECT anon_1.ms AS
ms FROM (SELECT message_packs.first_ms AS ms FROM message_packs ORDER BY message_packs.id LIMIT 1
OFFSET 0) AS anon_1 UNION ALL SELECT anon_2.ms AS ms FROM (SELECT events.time_ms AS ms FROM
events ORDER BY events.id LIMIT 1 OFFSET 0) AS anon_2) AS oldest"""
VHOST_EXISTED_BEFORE: Final = """SELECT (EXISTS (SELECT 1 AS anon_2 FROM origins WHERE
origins.vhost = ? AND origins.created_ms < ?)) OR (EXISTS (SELECT 1 AS anon_3 FROM queues WHERE
queues.vhost = ? AND queues.deleted_ms < ?)) AS anon_1"""
DELETED_QUEUES: Final = """SELECT DISTINCT queues.vhost, queues.name FROM queues
WHERE queues.deleted_ms IS NOT NULL"""
COUNT_MESSAGES: Final = """SELECT coalesce(sum(message_packs.count), 0) AS
coalesce_1 FROM message_packs"""
COUNT_EVENTS: Final = """SELECT coalesce(sum(events.count), 0) AS coalesce_1 FROM
events WHERE (events.kind NOT IN (21, 30))"""
EVENT_TIMES: Final = """SELECT first.time_ms, last.time_ms AS time_ms_1 FROM
(SELECT min(events.id) AS low, max(events.id) AS high FROM events) AS bounds LEFT OUTER JOIN
events AS first ON first.id = bounds.low LEFT OUTER JOIN events AS last ON last.id = bounds.high"""
INSERT_PACKS: Final = """INSERT INTO message_packs (id, last_id, count, first_ms,
last_ms, keep, body_bytes, has_bodies, first_part, parts, runs, ids, sizes, crcs, body_crc, crc,
data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
INSERT_PART: Final = """INSERT INTO body_parts (id, data) VALUES (?, ?)"""
INSERT_EVENTS: Final = """INSERT INTO events (id, time_ms, kind, queue_id, actor,
detail, count, first_id, last_id, ids, sizes, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
INSERT_MISSING_QUEUES: Final = """INSERT INTO queues (id, vhost, name, kind, durable,
auto_delete, "exclusive", arguments, created_ms, delivered_to) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?,
?) ON CONFLICT (id) DO NOTHING"""
UPSERT_DEFINITIONS: Final[dict[str, str]] = {
    "vhosts": """INSERT INTO vhosts (name, options) VALUES (?, ?) ON
CONFLICT (name) DO UPDATE SET options = excluded.options""",
    "users": """INSERT INTO users (name, password_hash, hashing, tags,
options) VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET password_hash =
excluded.password_hash, hashing = excluded.hashing, tags = excluded.tags, options =
excluded.options""",
    "permissions": """INSERT INTO permissions (user, vhost, configure, write,
read) VALUES (?, ?, ?, ?, ?) ON CONFLICT (user, vhost) DO UPDATE SET configure =
excluded.configure, write = excluded.write, read = excluded.read""",
    "topic_permissions": """INSERT INTO topic_permissions (user, vhost, exchange,
write, read) VALUES (?, ?, ?, ?, ?) ON CONFLICT (user, vhost, exchange) DO UPDATE SET write =
excluded.write, read = excluded.read""",
    "exchanges": """INSERT INTO exchanges (vhost, name, kind, auto_delete,
internal, arguments) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (vhost, name) DO UPDATE SET kind =
excluded.kind, auto_delete = excluded.auto_delete, internal = excluded.internal, arguments =
excluded.arguments""",
    "queues": """INSERT INTO queues (id, vhost, name, kind, durable,
auto_delete, "exclusive", arguments, created_ms, delivered_to) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?,
?) ON CONFLICT (id) DO UPDATE SET vhost = excluded.vhost, name = excluded.name, kind =
excluded.kind, durable = excluded.durable, auto_delete = excluded.auto_delete, "exclusive" =
excluded."exclusive", arguments = excluded.arguments, created_ms = excluded.created_ms,
delivered_to = excluded.delivered_to""",
    "bindings": """INSERT INTO bindings (vhost, source, destination,
destination_kind, routing_key, arguments) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (vhost, source,
destination, destination_kind, routing_key, arguments) DO NOTHING""",
    "policies": """INSERT INTO policies (vhost, name, operator, pattern,
apply_to, priority, definition) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (vhost, name, operator)
DO UPDATE SET pattern = excluded.pattern, apply_to = excluded.apply_to, priority =
excluded.priority, definition = excluded.definition""",
    "parameters": """INSERT INTO parameters (vhost, component, name, value)
VALUES (?, ?, ?, ?) ON CONFLICT (vhost, component, name) DO UPDATE SET value = excluded.value""",
    "group_offsets": """INSERT INTO group_offsets (queue_id, group_name,
"offset", time_ms) VALUES (?, ?, ?, ?) ON CONFLICT (queue_id, group_name) DO UPDATE SET "offset"
= excluded."offset", time_ms = excluded.time_ms""",
    "log_ends": """INSERT INTO log_ends (queue_id, next_offset, reserved_to)
VALUES (?, ?, ?) ON CONFLICT (queue_id) DO UPDATE SET next_offset = excluded.next_offset,
reserved_to = excluded.reserved_to""",
    "origins": """INSERT INTO origins (id, kind, vhost, user, connection,
channel, consumer_tag, created_ms, closed_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id)
DO UPDATE SET kind = excluded.kind, vhost = excluded.vhost, user = excluded.user, connection =
excluded.connection, channel = excluded.channel, consumer_tag = excluded.consumer_tag, created_ms
= excluded.created_ms, closed_ms = excluded.closed_ms""",
}
DELETE_DEFINITIONS: Final[dict[str, str]] = {
    "vhosts": """WITH keys(name) AS (VALUES (?)) DELETE FROM vhosts WHERE
(vhosts.name) IN (SELECT keys.name FROM keys)""",
    "users": """WITH keys(name) AS (VALUES (?)) DELETE FROM users WHERE
(users.name) IN (SELECT keys.name FROM keys)""",
    "permissions": """WITH keys(user, vhost) AS (VALUES (?, ?)) DELETE FROM
permissions WHERE (permissions.user, permissions.vhost) IN (SELECT keys.user, keys.vhost FROM
keys)""",
    "topic_permissions": """WITH keys(user, vhost, exchange) AS (VALUES (?, ?, ?))
DELETE FROM topic_permissions WHERE (topic_permissions.user, topic_permissions.vhost,
topic_permissions.exchange) IN (SELECT keys.user, keys.vhost, keys.exchange FROM keys)""",
    "exchanges": """WITH keys(vhost, name) AS (VALUES (?, ?)) DELETE FROM
exchanges WHERE (exchanges.vhost, exchanges.name) IN (SELECT keys.vhost, keys.name FROM keys)""",
    "queues": """WITH keys(id) AS (VALUES (?)) DELETE FROM queues WHERE
(queues.id) IN (SELECT keys.id FROM keys)""",
    "bindings": """WITH keys(vhost, source, destination, destination_kind,
routing_key, arguments) AS (VALUES (?, ?, ?, ?, ?, ?)) DELETE FROM bindings WHERE
(bindings.vhost, bindings.source, bindings.destination, bindings.destination_kind,
bindings.routing_key, bindings.arguments) IN (SELECT keys.vhost, keys.source, keys.destination,
keys.destination_kind, keys.routing_key, keys.arguments FROM keys)""",
    "policies": """WITH keys(vhost, name, operator) AS (VALUES (?, ?, ?))
DELETE FROM policies WHERE (policies.vhost, policies.name, policies.operator) IN (SELECT
keys.vhost, keys.name, keys.operator FROM keys)""",
    "parameters": """WITH keys(vhost, component, name) AS (VALUES (?, ?, ?))
DELETE FROM parameters WHERE (parameters.vhost, parameters.component, parameters.name) IN (SELECT
keys.vhost, keys.component, keys.name FROM keys)""",
    "group_offsets": """WITH keys(queue_id, group_name) AS (VALUES (?, ?)) DELETE
FROM group_offsets WHERE (group_offsets.queue_id, group_offsets.group_name) IN (SELECT
keys.queue_id, keys.group_name FROM keys)""",
    "log_ends": """WITH keys(queue_id) AS (VALUES (?)) DELETE FROM log_ends
WHERE (log_ends.queue_id) IN (SELECT keys.queue_id FROM keys)""",
    "origins": """WITH keys(id) AS (VALUES (?)) DELETE FROM origins WHERE
(origins.id) IN (SELECT keys.id FROM keys)""",
}
SELECT_DEFINITIONS: Final[dict[str, str]] = {
    "vhosts": """SELECT vhosts.name, vhosts.options FROM vhosts""",
    "users": """SELECT users.name, users.password_hash, users.hashing,
users.tags, users.options FROM users""",
    "permissions": """SELECT permissions.user, permissions.vhost,
permissions.configure, permissions.write, permissions.read FROM permissions""",
    "topic_permissions": """SELECT topic_permissions.user, topic_permissions.vhost,
topic_permissions.exchange, topic_permissions.write, topic_permissions.read FROM
topic_permissions""",
    "exchanges": """SELECT exchanges.vhost, exchanges.name, exchanges.kind,
exchanges.auto_delete, exchanges.internal, exchanges.arguments FROM exchanges""",
    "queues": """SELECT queues.id, queues.vhost, queues.name, queues.kind,
queues.durable, queues.auto_delete, queues."exclusive", queues.arguments, queues.created_ms,
queues.delivered_to FROM queues WHERE queues.deleted_ms IS NULL AND queues.durable = 1""",
    "bindings": """SELECT bindings.vhost, bindings.source,
bindings.destination, bindings.destination_kind, bindings.routing_key, bindings.arguments FROM
bindings""",
    "policies": """SELECT policies.vhost, policies.name, policies.operator,
policies.pattern, policies.apply_to, policies.priority, policies.definition FROM policies""",
    "parameters": """SELECT parameters.vhost, parameters.component,
parameters.name, parameters.value FROM parameters""",
    "group_offsets": """SELECT group_offsets.queue_id, group_offsets.group_name,
group_offsets."offset", group_offsets.time_ms FROM group_offsets""",
    "log_ends": """SELECT log_ends.queue_id, log_ends.next_offset,
log_ends.reserved_to FROM log_ends""",
    "origins": """SELECT origins.id, origins.kind, origins.vhost,
origins.user, origins.connection, origins.channel, origins.consumer_tag, origins.created_ms,
origins.closed_ms FROM origins""",
}
