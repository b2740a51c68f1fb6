"""The four tables as row tuples, read without Leveret's readers.

It uses `sqlite3` with a Python step per row, and the same columns in the same order as the data
source, so that all methods do the same work. It only reads, and belongs to one thread.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from leveret.model.history import EventKind
from leveret.model.message import Message, decode_properties, header_table, scan
from leveret.model.run import Run
from leveret.queues.log.files.reader import LogReader
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.packing import unpack_ids, unpack_sizes
from leveret.queues.storage.packs import Pack, PackRow
from leveret.spark_sink.arrow.properties import decode_typed_headers, header_text
from leveret.spark_sink.arrow.schemas import schema_of
from leveret.spark_sink.arrow.selection import Split

Row = tuple[Any, ...]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OTHER_COLUMNS = {
    "headers",
    "body",
    "body_bytes",
    "vhost",
    "user",
    "connection",
    "exchange",
    "time",
    "id",
    "queue",
    "queues",
    "typed_headers",
    "parent",
}
_PROPERTIES = [
    c.name for c in schema_of("messages").columns if c.name not in _OTHER_COLUMNS | {"routing_key"}
]
_PACKS = "SELECT * FROM message_packs WHERE last_id >= ? AND id < ? ORDER BY id"
_ORIGINS = "SELECT id, vhost, user, connection FROM origins WHERE id >= ? AND id < ?"
_ROUTED = f"""
SELECT e.queue_id, q.name, e.ids FROM events e JOIN queues q ON q.id = e.queue_id
 WHERE e.last_id >= ? AND e.first_id < ?
   AND e.kind IN ({int(EventKind.ENQUEUED)}, {int(EventKind.ENQUEUED_TRANSIENT)})"""
_COPIED = f"""
SELECT ids, sizes FROM events
 WHERE last_id >= ? AND first_id < ? AND kind = {int(EventKind.COPIED)}"""
_EVENTS = f"""
SELECT e.id, e.time_ms, e.kind, coalesce(q.vhost, o.vhost), q.name, o.user, o.connection,
       nullif(o.consumer_tag, ''), e.detail, e.ids, e.sizes
  FROM events e LEFT JOIN queues q ON q.id = e.queue_id LEFT JOIN origins o ON o.id = e.actor
 WHERE e.id >= ? AND e.id < ?
   AND e.kind NOT IN ({int(EventKind.COPIED)}, {int(EventKind.SNAPSHOT)})
 ORDER BY e.id"""
_QUEUES = """
SELECT id, vhost, name, kind, arguments, deleted_ms FROM queues WHERE id >= ? AND id < ?"""


def rows(data_dir: Path, table: str, split: Split) -> Iterator[Row]:
    return _READERS[table](data_dir, split)


def _select(data_dir: Path, sql: str, split: Split) -> Iterator[Row]:
    address = f"{(data_dir / DATABASE_NAME).resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        yield from connection.execute(sql, (split.from_id, split.to_id))


def _messages(data_dir: Path, split: Split) -> Iterator[Row]:
    routed: dict[int, list[tuple[int, str]]] = {}
    for queue_id, name, ids in _select(data_dir, _ROUTED, split):
        for number in unpack_ids(ids):
            routed.setdefault(number, []).append((queue_id, name))
    parents = {
        copy: copy - distance
        for ids, sizes in _select(data_dir, _COPIED, split)
        for copy, distance in zip(unpack_ids(ids), unpack_sizes(sizes), strict=True)
    }
    origins = {number: names for number, *names in _select(data_dir, _ORIGINS, Split(0, 2**62, 0))}
    for message in _stored_messages(data_dir, split):
        decoded = decode_properties(message.properties)
        values = [decoded.get(name) for name in _PROPERTIES]
        queues = [name for _, name in sorted(routed.get(message.id, ()))]
        yield (
            message.id, _time(message.time_ms), *origins.get(message.origin, (None,) * 3),
            message.exchange, message.routing_key, *values, _texts(decoded.get("headers")),
            message.body, message.body_size, queues[0] if queues else None, queues,
            _typed(message.properties), parents.get(message.id),
        )  # fmt: skip


def _stored_messages(data_dir: Path, split: Split) -> Iterator[Message]:
    for row in _select(data_dir, _PACKS, split):
        pack = Pack(PackRow(*row))
        ids = [number for number in pack.ids if split.from_id <= number < split.to_id]
        for run in pack.select(ids):
            if isinstance(run, Run):
                yield from run


def _events(data_dir: Path, split: Split) -> Iterator[Row]:
    for row in _select(data_dir, _EVENTS, split):
        (
            number,
            time_ms,
            kind_number,
            vhost,
            queue,
            user,
            connection,
            tag,
            detail,
            ids,
            sizes,
        ) = row
        kind, time = EventKind(kind_number), _time(time_ms)
        body_sizes = unpack_sizes(sizes) if sizes is not None else None
        for index, message in enumerate(unpack_ids(ids)):
            yield (
                number, index, time, kind.label, vhost, queue, message, user, connection, tag,
                detail, kind is EventKind.REDELIVERED,
                None if body_sizes is None else body_sizes[index],
            )  # fmt: skip


def _logs(data_dir: Path, split: Split) -> Iterator[Row]:
    vhost, log = next(
        (vhost, name)
        for number, vhost, name, *_ in _select(data_dir, _QUEUES, Split(0, 2**62, 0))
        if number == split.queue_id
    )
    with LogReader(data_dir / "logs" / str(split.queue_id)) as reader:
        for batch in reader.batches(split.from_id, split.to_id):
            for record in batch.records():
                if not split.from_id <= record.offset < split.to_id:
                    continue
                decoded = decode_properties(record.properties)
                headers = _texts(decoded.pop("headers", None))
                others = {name: str(value) for name, value in decoded.items()}
                yield (
                    vhost, log, 0, record.offset, _time(record.time_ms), record.exchange.decode(),
                    record.routing_key.decode(), headers, others, record.body, len(record.body),
                    _typed(record.properties),
                )  # fmt: skip


def _queues(data_dir: Path, split: Split) -> Iterator[Row]:
    for number, vhost, name, kind, arguments, deleted_ms in _select(data_dir, _QUEUES, split):
        deleted = None if deleted_ms is None else _time(deleted_ms)
        yield number, vhost, name, kind, json.dumps(json.loads(arguments)), deleted


_READERS: dict[str, Callable[[Path, Split], Iterator[Row]]] = {
    "messages": _messages,
    "events": _events,
    "logs": _logs,
    "queues": _queues,
}


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _typed(properties: bytes) -> dict[str, dict[str, Any]] | None:
    found = scan(properties)
    return (
        decode_typed_headers(header_table(properties, found)) if "headers" in found.spans else None
    )


def _texts(headers: dict[str, Any] | None) -> dict[str, str | None] | None:
    if headers is None:
        return None
    return {name: header_text(value) for name, value in headers.items()}
