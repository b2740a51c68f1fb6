"""Writes a broker's data directory with random traffic, and keeps a ledger of it.

Rows are written through the broker's own schema; the ledger is independent of what is stored.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, delete, event, func, insert, select

from leveret.model.history import SIZED_KINDS, EventKind
from leveret.model.message import encode_properties
from leveret.queues.log.files.partition import Partition, PartitionSettings
from leveret.queues.storage import schema
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.packing import (
    body_checksum,
    event_checksum,
    head_checksum,
    pack_ids,
    pack_sizes,
    route_checksum,
)
from leveret.queues.storage.trims import Trims

START_MS = 1_790_000_000_000
QUEUES = ("orders", "mail", "odd/name %=,é", "123")


@dataclass
class Ledger:
    """What was written, in plain Python values."""

    messages: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: Counter[tuple[str | None, str]] = field(default_factory=Counter)
    triples: set[tuple[str | None, str, int, int]] = field(default_factory=set)
    live: dict[str, list[int]] = field(default_factory=dict)
    routed: dict[str, set[int]] = field(default_factory=dict)
    logs: dict[str, list[tuple[int, dict[str, Any], bytes]]] = field(default_factory=dict)

    @property
    def event_rows(self) -> int:
        return sum(self.events.values())

    @property
    def body_bytes(self) -> int:
        return sum(len(message["body"]) for message in self.messages.values())

    def queues_of(self, number: int) -> list[str]:
        """The queues that a message was routed to, the oldest first."""
        return [name for name in QUEUES if number in self.routed[name]]


class FakeBroker:
    """Writes what a broker writes; one transaction per `commit()`."""

    def __init__(self, data_dir: Path, seed: int = 1) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir
        self.random = random.Random(seed)
        self.ledger = Ledger()
        self.engine = create_engine(f"sqlite:///{data_dir / DATABASE_NAME}")
        event.listen(self.engine, "connect", _enable_wal)
        schema.metadata.create_all(self.engine)
        self.time_ms = START_MS
        self._message_id = self._event_id = 0
        self._messages: list[dict[str, Any]] = []
        self._events: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        self.queue_ids = {name: number for number, name in enumerate(QUEUES, start=1)}
        self.ledger.live = {name: [] for name in QUEUES}
        self.ledger.routed = {name: set() for name in QUEUES}
        self.logs: dict[str, Partition] = {}
        self._insert_definitions()

    def close(self) -> None:
        for log in self.logs.values():
            log.close()
        self.engine.dispose()

    def publish(self, queues: Iterable[str], body: bytes, **properties: Any) -> int:
        self._message_id += 1
        number, wire = self._message_id, encode_properties(properties)
        key = "rk." + "x" * (number % 3)
        self._messages.append(
            {
                "id": number, "time_ms": self.time_ms, "origin": 1 + number % 2, "keep": 2,
                "size": len(body), "exchange": "ex", "routing_key": key, "properties": wire,
                "body": body, "body_crc": body_checksum(body),
                "head_crc": head_checksum(route_checksum(b"ex", key.encode()), number,
                                          len(body), wire),
            }
        )  # fmt: skip
        self.ledger.messages[number] = {
            "body": body, "time_ms": self.time_ms, "routing_key": key, **properties
        }  # fmt: skip
        chosen = list(queues)
        self.record(EventKind.PUBLISHED if chosen else EventKind.UNROUTABLE, None, number, 1)
        for queue in chosen:
            self.record(EventKind.ENQUEUED, queue, number, 1, size=len(body))
            self.ledger.live[queue].append(number)
            self.ledger.routed[queue].add(number)
        return number

    def record(
        self, kind: EventKind, queue: str | None, number: int, actor: int = 0,
        detail: str | None = None, size: int = 0,
    ) -> None:  # fmt: skip
        queue_id = self.queue_ids[queue] if queue else 0
        self._events.setdefault((kind, queue_id, actor, detail), []).append((number, size))
        if kind is not EventKind.SNAPSHOT:
            self.ledger.events[queue, kind.label] += 1
            self.ledger.triples.add((queue, kind.label, number, self.time_ms))
        if kind.settles and queue:
            self.ledger.live[queue].remove(number)

    def commit(self) -> None:
        """One transaction, like those of the broker's writer."""
        with self.engine.begin() as connection:
            if self._messages:
                connection.execute(insert(schema.messages), self._messages)
            for (kind, queue_id, actor, detail), entries in self._events.items():
                self._event_id += 1
                connection.execute(
                    insert(schema.events), self._row(kind, queue_id, actor, detail, entries)
                )
        self._messages.clear()
        self._events.clear()
        self.time_ms += self.random.randrange(1, 2000)

    def append(self, log: str, records: int) -> None:
        """Append records to a log in two batches; the first append declares the log."""
        if log not in self.queue_ids:
            self._declare_log(log)
        for part in (records // 2, records - records // 2):
            entries = []
            for _ in range(part):
                number = len(self.ledger.logs[log])
                properties: dict[str, Any] = {"priority": 1}
                if number % 2:
                    properties = {"message_id": f"{log}/{number}"}
                if number % 3 == 0:
                    properties["headers"] = {"n": number}
                body = self.random.randbytes(number % 40)
                self.ledger.logs[log].append((self.time_ms, properties, body))
                key = f"k{number % 5}".encode()
                entries.append((b"ex", key, encode_properties(properties), body))
            self.logs[log].write(entries, self.time_ms)
            self.logs[log].sync()
            self.time_ms += 500

    def trim(self, table: str, upto: int, keep: Iterable[int] = ()) -> None:
        """Delete rows up to an id, except some, as retention does."""
        rows, key = schema.metadata.tables[table], f"trimmed_{table}"
        chosen = (rows.c.id <= upto) & rows.c.id.not_in(list(keep))
        with self.engine.begin() as connection:
            last = connection.execute(select(func.max(rows.c.id)).where(chosen)).scalar_one()
            connection.execute(delete(rows).where(chosen))
            stored = select(schema.meta.c.value).where(schema.meta.c.key == key)
            trims = Trims.from_json(connection.execute(stored).scalar()).after_deleting(last)
            notes = {key: trims.to_json(), "last_message_id": str(self._message_id)}
            connection.execute(delete(schema.meta).where(schema.meta.c.key.in_(notes)))
            values = [{"key": name, "value": value} for name, value in notes.items()]
            connection.execute(insert(schema.meta), values)

    def append_at(self, log: str, time_ms: int, records: int) -> None:
        """Append records with this time to a log, as one batch."""
        if log not in self.queue_ids:
            self._declare_log(log)
        properties: dict[str, Any] = {}
        self.ledger.logs[log] += [(time_ms, properties, b"")] * records
        self.logs[log].write([(b"ex", b"k", encode_properties(properties), b"")] * records, time_ms)
        self.logs[log].sync()

    def _declare_log(self, name: str) -> None:
        number = self.queue_ids[name] = max(self.queue_ids.values()) + 1
        self.logs[name] = Partition(
            self.data_dir / "logs" / str(number), PartitionSettings(10_000, durable=False)
        )
        self.ledger.logs[name] = []
        with self.engine.begin() as connection:
            row = {"id": number, "vhost": "/", "name": name, "kind": "stream"}
            connection.execute(insert(schema.queues), row)
            parent = name.rpartition("-")[0]
            if parent and parent not in self.queue_ids:
                row = {"id": number + 1, "vhost": "/", "name": parent, "kind": "stream"}
                self.queue_ids[parent] = number + 1
                connection.execute(
                    insert(schema.queues), row | {"arguments": '{"x-partitions": 10}'}
                )

    def traffic(self, commits: int) -> None:
        """Random traffic of every kind."""
        for _ in range(commits):
            for _ in range(self.random.randrange(1, 12)):
                self._publish_random()
            for queue, live in self.ledger.live.items():
                for number in [n for n in live if self.random.random() < 0.5]:
                    self._settle_random(queue, number)
            if self.random.random() < 0.2:
                queue = self.random.choice(QUEUES)
                for number in self.ledger.live[queue]:
                    self.record(EventKind.SNAPSHOT, queue, number, size=1)
            self.commit()

    def _publish_random(self) -> None:
        pick = self.random
        body = pick.randbytes(pick.choice((0, 1, 17, 300)))
        properties: dict[str, Any] = {"delivery_mode": 2}
        if pick.random() < 0.5:
            properties["message_id"] = f"m-{pick.random()}"
            properties["headers"] = {"n": pick.randrange(9), "name": "ünï", "deep": {"a": [1, 2]}}
        if pick.random() < 0.3:
            properties |= {"priority": 3, "timestamp": 1_700_000_000, "app_id": "gen",
                           "content_type": "text/plain", "expiration": "60000"}  # fmt: skip
        self.publish(pick.sample(QUEUES, pick.randrange(0, 3)), body, **properties)

    def _settle_random(self, queue: str, number: int) -> None:
        pick = self.random.random()
        delivered = EventKind.REDELIVERED if pick < 0.15 else EventKind.DELIVERED
        if pick < 0.8:
            self.record(delivered, queue, number, 3)
        if pick < 0.1:
            self.record(EventKind.REQUEUED, queue, number, 3)
        elif pick < 0.6:
            self.record(EventKind.ACKED, queue, number, 3)
        elif pick < 0.7:
            self.record(EventKind.REJECTED, queue, number, 3)
        elif pick < 0.8:
            self.record(EventKind.DEAD_LETTERED, queue, number, 3, detail="dlx")
        elif pick < 0.9:
            self.record(EventKind.EXPIRED, queue, number)
        else:
            self.record(EventKind.PURGED, queue, number)

    def _row(
        self, kind: EventKind, queue_id: int, actor: int, detail: str | None,
        entries: list[tuple[int, int]],
    ) -> dict[str, Any]:  # fmt: skip
        numbers = [number for number, _ in entries]
        ids = pack_ids(numbers)
        sizes = pack_sizes(size for _, size in entries) if kind in SIZED_KINDS else None
        crc = event_checksum(self.time_ms, kind, queue_id, actor, detail, len(entries), ids, sizes)
        return {
            "id": self._event_id, "time_ms": self.time_ms, "kind": int(kind),
            "queue_id": queue_id, "actor": actor, "detail": detail, "count": len(entries),
            "first_id": min(numbers), "last_id": max(numbers), "ids": ids, "sizes": sizes,
            "crc": crc,
        }  # fmt: skip

    def _insert_definitions(self) -> None:
        origins = [
            {"id": 1, "kind": 1, "vhost": "/", "user": "alice", "connection": "c1"},
            {"id": 2, "kind": 1, "vhost": "/", "user": "bob", "connection": "c2"},
            {"id": 3, "kind": 2, "vhost": "/", "user": "carl", "connection": "c3",
             "consumer_tag": "ct"},
        ]  # fmt: skip
        with self.engine.begin() as connection:
            for origin in origins:
                connection.execute(insert(schema.origins), origin)
            for name, number in self.queue_ids.items():
                connection.execute(
                    insert(schema.queues), {"id": number, "vhost": "/", "name": name}
                )
            connection.execute(insert(schema.meta), {"key": "created_ms", "value": "1"})


def _enable_wal(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
