"""One batch as one SQL transaction.

Used on the writer thread only. `Transactor` turns a batch into a handful of large statements on
the driver's connection; either all of it is committed when `run` returns, or it raised and nothing
is. It also counts, per queue, how long the journal has become since its last snapshot.

Snapshots are written before the other events of their batch: events of the same batch that a
snapshot already reflects are folded again after it, which changes nothing (see `fold`), while one
recorded after it must not come before it.
"""

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import cast

import orjson

from leveret.model.history import FIRST_SETTLING, LAST_SETTLING, EventKind
from leveret.model.store import Definition, NewMessage, NewMessageTuple, QueueDefinition, Snapshot
from queues.storage import statements
from queues.storage.batch import Batch, EventKey, Group
from queues.storage.keys import KEY_COLUMNS
from queues.storage.packing import (
    body_checksum,
    event_checksum,
    head_checksum,
    pack_ids,
    pack_sizes,
    route_checksum,
)

SETTLED_BEFORE_SNAPSHOT = 10_000
ROWS_BEFORE_SNAPSHOT = 10_000
_ROUTES_KEPT = 10_000
LOG_ENDS = "log_ends"
_MESSAGE_WIDTH = len(statements.MESSAGE_COLUMNS)
_EVENT_WIDTH = len(statements.EVENT_COLUMNS)


@dataclass(slots=True)
class Tally:
    """The journal of one queue since its last snapshot."""

    live: int = 0
    settled: int = 0
    rows: int = 0

    @property
    def is_due(self) -> bool:
        """A shorter journal is worth a snapshot: the cost is kept in proportion to the queue."""
        return (
            self.settled > max(SETTLED_BEFORE_SNAPSHOT, self.live)
            or self.rows > ROWS_BEFORE_SNAPSHOT + self.live // 16
        )


class Transactor:
    """`last_event` and `last_message` are the highest ids written so far."""

    def __init__(self, connection: sqlite3.Connection, last_event: int, last_message: int) -> None:
        self._execute = connection.execute
        self._connection = connection
        level = self._execute(statements.SYNC_LEVEL).fetchone()[0]
        self._sync_at_commit = f"{statements.SYNC_LEVEL}={level}"
        self.last_event = last_event
        self.last_message = last_message
        self.tallies: dict[int, Tally] = {}
        self.swept_to = 0
        """Retention has passed these ids; what is settled below it is remembered in `late`."""
        self.late: array[int] = array("Q")
        self.unkept_to = 0
        """How far the round for content that history never wanted has come."""
        self._routes: dict[tuple[str, str], int] = {}
        self.has_announced = False
        """What was announced stands until a batch is committed: it must not stand any longer."""

    def announce(self, batch: Batch) -> None:
        """Write down where logs end, before they get what stands or falls with this batch.

        After a crash they are cut there, so the batch is in all files or in none.
        """
        if batch.bound and batch.has_sql:
            ends = dict(sink.end() for sink in batch.logs_with(batch.bound))
            if ends:
                self.set_meta(LOG_ENDS, orjson.dumps(ends).decode())
                self.has_announced = True

    def run(self, batch: Batch, now_ms: int) -> tuple[int, ...]:
        """Commit the batch; returns the queues of it whose snapshot is due."""
        self._execute(statements.BEGIN)
        self._insert_messages(_without_discarded(batch))
        self._change_definitions(batch, now_ms)
        self._insert_events(batch, now_ms)
        self._drop_content(batch)
        if self.has_announced:
            self.set_meta(LOG_ENDS, "{}")
        self._execute(statements.COMMIT)
        self.has_announced = False
        return self._count(batch)

    def run_unsynced(self, batch: Batch, now_ms: int) -> tuple[int, ...]:
        """The same, safe from a crash but not yet from a power failure: the next `run` syncs it."""
        self._execute(statements.SYNC_LATER)
        try:
            return self.run(batch, now_ms)
        finally:
            self.roll_back()  # the level cannot be changed within a transaction
            self._execute(self._sync_at_commit)

    def sync(self) -> None:
        """Any commit does it; this one changes nothing."""
        self.set_meta("clean", "0")

    def roll_back(self) -> None:
        if self._connection.in_transaction:
            self._execute(statements.ROLLBACK)

    def set_meta(self, key: str, value: str) -> None:
        self._execute(statements.SET_META, (key, value))

    def _insert_messages(self, rows: list[NewMessage | NewMessageTuple]) -> None:
        if not rows:
            return
        flat: list[object] = []
        extend, routes = flat.extend, self._routes
        for id_, time_ms, origin, exchange, key, properties, body, keep in rows:
            route = routes.get((exchange, key))
            if route is None:
                route = self._route(exchange, key)
            size = len(body)
            head = head_checksum(route, id_, size, properties)
            extend((id_, time_ms, origin, keep, size, exchange, key, properties, body,
                    head, body_checksum(body)))  # fmt: skip
        self._insert(statements.insert_messages, _MESSAGE_WIDTH, flat)
        self.last_message = max(self.last_message, rows[-1][0])

    def _route(self, exchange: str, key: str) -> int:
        if len(self._routes) >= _ROUTES_KEPT:
            self._routes.clear()
        route = route_checksum(exchange.encode(), key.encode())
        self._routes[exchange, key] = route
        return route

    def _insert(self, sql: Callable[[int], str], width: int, flat: list[object]) -> None:
        start = 0
        for size in statements.statement_sizes(len(flat) // width):
            end = start + size * width
            self._execute(sql(size), flat[start:end])
            start = end

    def _insert_events(self, batch: Batch, now_ms: int) -> None:
        flat: list[object] = []
        for snapshot in batch.snapshots.values():
            self._add_snapshot(flat, snapshot, now_ms)
        for key, group in batch.events.items():
            self._add_event(flat, key, group)
        if flat:
            self._insert(statements.insert_events, _EVENT_WIDTH, flat)

    def _add_snapshot(self, flat: list[object], snapshot: Snapshot, now_ms: int) -> None:
        first = self.last_event + 1
        self._execute(statements.SET_SNAPSHOT, (first, snapshot.queue_id))
        if snapshot.trim:
            self._execute(statements.TRIM_QUEUE, (snapshot.queue_id, first))
        for part in snapshot.parts:
            key = (EventKind.SNAPSHOT, snapshot.queue_id, 0, part.detail)
            self._add_event(flat, key, (now_ms, part.ids, part.sizes))

    def _add_event(self, flat: list[object], key: EventKey, group: Group) -> None:
        kind, queue_id, actor, detail = key
        time_ms, message_ids, body_sizes = group
        if not message_ids:
            return
        self.last_event += 1
        count = len(message_ids)
        ids = pack_ids(message_ids)
        sizes = None if body_sizes is None else pack_sizes(body_sizes)
        crc = event_checksum(time_ms, kind, queue_id, actor, detail, count, ids, sizes)
        flat.extend((self.last_event, time_ms, int(kind), queue_id, actor, detail, count,
                     min(message_ids), max(message_ids), ids, sizes, crc))  # fmt: skip

    def _change_definitions(self, batch: Batch, now_ms: int) -> None:
        if batch.lease is not None:
            self.set_meta("lease", str(batch.lease.message_id))
        saves: dict[type[object], list[Definition]] = {}
        deletes: dict[type[object], list[Definition]] = {}
        for (kind, _), (definition, saved) in batch.changes.items():
            (saves if saved else deletes).setdefault(kind, []).append(definition)
        for kind, definitions in deletes.items():
            self._delete(kind, definitions, now_ms)
        for kind, definitions in saves.items():
            self._save(kind, definitions, statements.upsert)

    def _save(
        self,
        kind: type[object],
        definitions: Sequence[Definition],
        sql: Callable[[type[object], int], str],
    ) -> None:
        flat: list[object] = list(chain.from_iterable(map(astuple, definitions)))
        width = len(statements.columns_of(kind))
        self._insert(lambda size: sql(kind, size), width, flat)

    def _delete(self, kind: type[object], definitions: Sequence[Definition], now_ms: int) -> None:
        keys = KEY_COLUMNS[kind]
        if kind is QueueDefinition:
            # One that came and went within a batch still has a name in the history.
            self._save(kind, definitions, statements.insert_missing)
            ids = json_ids(cast("QueueDefinition", queue).id for queue in definitions)
            self._execute(statements.RETIRE_QUEUES, (now_ms, ids))
            self._execute(statements.FORGET_GROUPS, (ids,))
            return
        flat: list[object] = [getattr(value, name) for value in definitions for name in keys]
        self._insert(lambda size: statements.delete(kind, size), len(keys), flat)

    def _drop_content(self, batch: Batch) -> None:
        if batch.strips:
            self._execute(statements.STRIP, (json_ids(batch.strips),))
        if batch.discards:
            # The highest row may go: remember that its id was used.
            self.last_message = max(self.last_message, max(batch.discards))
            self.set_meta("last_message_id", str(self.last_message))
            self._execute(statements.DISCARD, (json_ids(batch.discards),))

    def _count(self, batch: Batch) -> tuple[int, ...]:
        due = set()
        for queue_id, snapshot in batch.snapshots.items():
            live = sum(len(part.ids) for part in snapshot.parts)
            self.tallies[queue_id] = Tally(live, 0, len(snapshot.parts))
        for (kind, queue_id, _, _), (_, ids, _) in batch.events.items():
            settles = FIRST_SETTLING <= kind <= LAST_SETTLING
            if not settles and kind != EventKind.ENQUEUED:
                continue
            tally = self.tallies.get(queue_id)
            if tally is None:
                tally = self.tallies[queue_id] = Tally()
            tally.rows += 1
            if settles:
                tally.settled += len(ids)
                tally.live = max(0, tally.live - len(ids))
                self._note_late(ids)
            elif queue_id not in batch.snapshots:
                tally.live += len(ids)
            if tally.is_due:
                due.add(queue_id)
        for (definition_kind, key), (_, saved) in batch.changes.items():
            if definition_kind is QueueDefinition and not saved:
                gone = cast("int", key[0])
                self.tallies.pop(gone, None)
                due.discard(gone)
        return tuple(due)

    def _note_late(self, ids: Sequence[int]) -> None:
        if self.swept_to and min(ids) <= self.swept_to:
            self.late.extend(i for i in ids if i <= self.swept_to)


def _without_discarded(batch: Batch) -> list[NewMessage | NewMessageTuple]:
    """A message that came and went within one batch and leaves no history is never written."""
    if not batch.discards or not batch.rows:
        return batch.rows
    gone = set(batch.discards)
    return [row for row in batch.rows if row[0] not in gone or row[7]]


def json_ids(ids: Iterable[int]) -> str:
    return orjson.dumps(list(ids)).decode()
