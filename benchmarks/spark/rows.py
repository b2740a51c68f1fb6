"""The four tables as plain row tuples: what one writes without Leveret's readers.

`sqlite3` and a Python step per row, the same columns in the same order as the data source, so
that all ways have the same work to do. Everything here is read-only and belongs to one thread.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from leveret.model.history import EventKind
from leveret.model.properties import decode_properties
from queues.log.reader import LogReader
from queues.storage.directory import DATABASE_NAME
from queues.storage.packing import unpack_ids, unpack_sizes
from spark_sink.properties import header_text
from spark_sink.schemas import columns_of
from spark_sink.selection import Split

Row = tuple[Any, ...]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STORED = {
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
}
_PROPERTIES = [c.name for c in columns_of("messages") if c.name not in _STORED | {"routing_key"}]
_MESSAGES = """
SELECT m.id, m.time_ms, o.vhost, o.user, o.connection, m.exchange, m.routing_key, m.properties,
       m.body, m.size
  FROM messages m LEFT JOIN origins o ON o.id = m.origin
 WHERE m.id >= ? AND m.id < ? ORDER BY m.id"""
_TAKEN = f"""
SELECT e.queue_id, q.name, e.ids FROM events e JOIN queues q ON q.id = e.queue_id
 WHERE e.last_id >= ? AND e.first_id < ?
   AND e.kind IN ({int(EventKind.ENQUEUED)}, {int(EventKind.ENQUEUED_TRANSIENT)})"""
_EVENTS = f"""
SELECT e.id, e.time_ms, e.kind, coalesce(q.vhost, o.vhost), q.name, o.user, o.connection,
       nullif(o.consumer_tag, ''), e.detail, e.ids, e.sizes
  FROM events e LEFT JOIN queues q ON q.id = e.queue_id LEFT JOIN origins o ON o.id = e.actor
 WHERE e.id >= ? AND e.id < ? AND e.kind <> {int(EventKind.SNAPSHOT)} ORDER BY e.id"""
_QUEUES = """
SELECT id, vhost, name, kind, arguments, deleted_ms FROM queues WHERE id >= ? AND id < ?"""


def rows(data_dir: Path, table: str, split: Split) -> Iterator[Row]:
    return _READERS[table](data_dir, split)


def _selected(data_dir: Path, sql: str, split: Split) -> Iterator[Row]:
    address = f"{(data_dir / DATABASE_NAME).resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        yield from connection.execute(sql, (split.from_id, split.to_id))


def _messages(data_dir: Path, split: Split) -> Iterator[Row]:
    taken: dict[int, list[tuple[int, str]]] = {}
    for queue_id, name, ids in _selected(data_dir, _TAKEN, split):
        for message in unpack_ids(ids):
            taken.setdefault(message, []).append((queue_id, name))
    for row in _selected(data_dir, _MESSAGES, split):
        (
            number,
            time_ms,
            vhost,
            user,
            connection,
            exchange,
            key,
            properties,
            body,
            size,
        ) = row
        given = decode_properties(properties)
        named = [given.get(name) for name in _PROPERTIES]
        queues = [name for _, name in sorted(taken.get(number, ()))]
        yield (
            number, _time(time_ms), vhost, user, connection, exchange, key, *named,
            _texts(given.get("headers")), body, size, queues[0] if queues else None, queues,
        )  # fmt: skip


def _events(data_dir: Path, split: Split) -> Iterator[Row]:
    for row in _selected(data_dir, _EVENTS, split):
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
        known = unpack_sizes(sizes) if sizes is not None else None
        for place, message in enumerate(unpack_ids(ids)):
            yield (
                number, place, time, kind.label, vhost, queue, message, user, connection, tag,
                detail, kind is EventKind.REDELIVERED, None if known is None else known[place],
            )  # fmt: skip


def _logs(data_dir: Path, split: Split) -> Iterator[Row]:
    vhost, log = next(
        (vhost, name)
        for number, vhost, name, *_ in _selected(data_dir, _QUEUES, Split(0, 2**62, 0))
        if number == split.queue_id
    )
    with LogReader(data_dir / "logs" / str(split.queue_id)) as reader:
        for batch in reader.batches(split.from_id, split.to_id):
            for record in batch.records():
                if not split.from_id <= record.offset < split.to_id:
                    continue
                given = decode_properties(record.properties)
                headers = _texts(given.pop("headers", None))
                others = {name: str(value) for name, value in given.items()}
                yield (
                    vhost, log, 0, record.offset, _time(record.time_ms), record.exchange.decode(),
                    record.routing_key.decode(), headers, others, record.body, len(record.body),
                )  # fmt: skip


def _queues(data_dir: Path, split: Split) -> Iterator[Row]:
    for number, vhost, name, kind, arguments, deleted_ms in _selected(data_dir, _QUEUES, split):
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


def _texts(headers: dict[str, Any] | None) -> dict[str, str | None] | None:
    if headers is None:
        return None
    return {name: header_text(value) for name, value in headers.items()}
