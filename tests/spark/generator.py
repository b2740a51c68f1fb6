"""Writes a broker's data directory with random traffic, and keeps a ledger of it.

Rows are written through the broker's own schema; the ledger is independent of what is stored.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, delete, event, func, insert, select

from leveret.model.history import SIZED_KINDS, EventKind, Keep
from leveret.model.message import PARTS_FROM, Address, Message, encode_properties
from leveret.model.run import Run
from leveret.queues.log.files.partition import Partition, PartitionSettings
from leveret.queues.storage import schema
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.packing import event_checksum, pack_ids, pack_sizes
from leveret.queues.storage.packs import Pack, PackRow, encode_packs, index_checksum
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
        self._message_id = self._event_id = self._part_id = 0
        self._messages: list[Message] = []
        self._stripped: set[int] = set()
        self._is_varied = False
        self._pack_sizes = random.Random(seed)
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

    def publish(
        self,
        queues: Iterable[str],
        body: bytes,
        *,
        origin: int | None = None,
        keep: Keep = Keep.FULL,
        is_stripped: bool = False,
        encoded: bytes | None = None,
        **properties: Any,
    ) -> int:
        """`encoded` are properties in wire form. A body that is stripped was there once."""
        self._message_id += 1
        number = self._message_id
        key = "rk." + "x" * (number % 3)
        wire = encode_properties(properties) if encoded is None else encoded
        message = Message.build(Address.of("ex", key), wire, body)
        message.id, message.time_ms, message.keep = number, self.time_ms, keep
        message.origin = 1 + number % 2 if origin is None else origin
        self._messages.append(message)
        if is_stripped:
            self._stripped.add(number)
        if keep is not Keep.NOTHING:
            self.ledger.messages[number] = {
                "body": body, "time_ms": self.time_ms, "routing_key": key,
                "stored_body": None if is_stripped and body else body, **properties,
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
            self._insert_packs(connection)
            for (kind, queue_id, actor, detail), entries in self._events.items():
                self._event_id += 1
                connection.execute(
                    insert(schema.events), self._row(kind, queue_id, actor, detail, entries)
                )
        self._messages.clear()
        self._events.clear()
        self.time_ms += self.random.randrange(1, 2000)

    def skip_ids(self, count: int) -> None:
        """The next messages have higher ids, as if some between had gone elsewhere."""
        self._message_id += count

    def _insert_packs(self, connection: Connection) -> None:
        """Packs of different sizes."""
        rest = self._messages
        while rest:
            size = self._pack_sizes.choice((1, 2, 3, 10, 1000))
            for row in encode_packs(self._runs(rest[:size], connection)):
                self._insert_pack(connection, row)
            rest = rest[size:]
        self._stripped.clear()

    def _runs(self, messages: list[Message], connection: Connection) -> Iterable[Run]:
        for message in messages:
            body = message.large_body
            if body is not None and len(body) > PARTS_FROM:
                body.first_part = self._part_id + 1
                self._insert_parts(connection, body.parts())
        groups = groupby(messages, lambda one: (one.routing_key, one.origin, one.keep, one.channel))
        for (*_, channel), group in groups:
            run = list(group)
            yield from [Run.of(run)] if channel else [Run.of([one]) for one in run]

    def _insert_pack(self, connection: Connection, row: PackRow) -> None:
        if self._stripped:
            row = Pack(row).without_bodies(lambda number: number not in self._stripped) or row
        if self._is_varied and not row.parts and self._pack_sizes.random() < 0.1:
            row, pieces = data_in_parts(row, self._part_id + 1)
            self._insert_parts(connection, pieces)
        connection.execute(insert(schema.message_packs).values(row))

    def _insert_parts(self, connection: Connection, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._part_id += 1
            connection.execute(insert(schema.body_parts), {"id": self._part_id, "data": piece})

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
        """Delete messages or events up to an id, except some, as retention does."""
        key, kept = f"trimmed_{table}", set(keep)
        with self.engine.begin() as connection:
            if table == "messages":
                last = _trim_packs(connection, upto, kept)
            else:
                chosen = (schema.events.c.id <= upto) & schema.events.c.id.not_in(kept)
                highest = select(func.max(schema.events.c.id)).where(chosen)
                last = connection.execute(highest).scalar_one()
                connection.execute(delete(schema.events).where(chosen))
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

    def traffic(self, commits: int, *, is_varied: bool = False) -> None:
        """Random traffic of every kind.

        `is_varied`: not all ids are used, not all bodies are kept, and the data of some packs is in
        parts, as if it belonged to large transactions.
        """
        self._is_varied = is_varied
        for _ in range(commits):
            for _ in range(self.random.randrange(1, 12)):
                self._publish_random(**(self._random_keep() if is_varied else {}))
            for queue, live in self.ledger.live.items():
                for number in [n for n in live if self.random.random() < 0.5]:
                    self._settle_random(queue, number)
            if self.random.random() < 0.2:
                queue = self.random.choice(QUEUES)
                for number in self.ledger.live[queue]:
                    self.record(EventKind.SNAPSHOT, queue, number, size=1)
            self.commit()

    def _random_keep(self) -> dict[str, Any]:
        pick = self.random
        if pick.random() < 0.2:
            self.skip_ids(pick.randrange(1, 4))
        if pick.random() < 0.5:
            return {}
        return {"keep": Keep.METADATA, "is_stripped": pick.random() < 0.5}

    def _publish_random(self, **keep: Any) -> None:
        pick = self.random
        body = pick.randbytes(pick.choice((0, 1, 17, 300)))
        properties: dict[str, Any] = {"delivery_mode": 2}
        if pick.random() < 0.5:
            properties["message_id"] = f"m-{pick.random()}"
            properties["headers"] = {"n": pick.randrange(9), "name": "ünï", "deep": {"a": [1, 2]}}
        if pick.random() < 0.3:
            properties |= {"priority": 3, "timestamp": 1_700_000_000, "app_id": "gen",
                           "content_type": "text/plain", "expiration": "60000"}  # fmt: skip
        self.publish(pick.sample(QUEUES, pick.randrange(0, 3)), body, **keep, **properties)

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


def data_in_parts(row: PackRow, first_part: int) -> tuple[PackRow, list[bytes]]:
    """A pack like those of large transactions: its data is in parts; these parts."""
    data, size = row.data or b"", 100
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    row = row._replace(data=None, first_part=first_part, parts=len(pieces))
    return row._replace(crc=index_checksum(row)), pieces


def _trim_packs(connection: Connection, upto: int, kept: set[int]) -> int:
    """The last message that was deleted."""
    packs = schema.message_packs
    last = 0
    for values in connection.execute(select(packs).where(packs.c.id <= upto)).all():
        row = PackRow(*values)
        assert row.data is not None
        pack = Pack(row)
        removed = [number for number in pack.ids if number <= upto and number not in kept]
        last = max(last, *removed) if removed else last
        rest = pack.without(set(removed).__contains__)
        connection.execute(delete(packs).where(packs.c.id == row.id))
        if rest is not None:
            connection.execute(insert(packs).values(rest))
    return last


def _enable_wal(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
