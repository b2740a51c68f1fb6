"""Writes one batch as one SQL transaction.

Used on the writer thread only. `Transactor` turns a batch into a few large statements on the
driver's connection; when `run` returns, all of the batch is committed; when it raises, nothing is.
It also counts, per queue, how long the journal has become since the last snapshot.

Snapshots are written before the other events of their batch: an event of the same batch that the
snapshot already reflects is folded again after it, which changes nothing (see `fold`), while an
event recorded after the snapshot must not precede it.
"""

import sqlite3
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final, cast

import orjson

from leveret.model.definitions import (
    DEFINITION_TABLES,
    Definition,
    GroupOffset,
    LogEnd,
    QueueDefinition,
)
from leveret.model.history import FIRST_SETTLING, LAST_SETTLING, EventKind
from leveret.model.run import Run
from leveret.model.store import Snapshot
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage import statements
from leveret.queues.storage.batch import Batch, EventGroup, EventKey
from leveret.queues.storage.packing import event_checksum, pack_ids, pack_sizes
from leveret.queues.storage.packs import StagedPack, encode_packs

SETTLED_BEFORE_SNAPSHOT: Final = 10_000
ROWS_BEFORE_SNAPSHOT: Final = 10_000
LOG_CUTS: Final = "log_ends"
LAST_EVENT_ID: Final = "last_event_id"
NEEDS_REPAIR: Final = "needs_repair"
"""Set in `meta` when damage was found while the broker ran: the next start repairs it."""
_PACK_WIDTH: Final = len(compiled.COLUMNS["message_packs"])
_EVENT_WIDTH: Final = len(compiled.COLUMNS["events"])
_COLUMNS: Final[dict[type[object], Callable[[object], tuple[object, ...]]]] = {
    kind: attrgetter(*(each.name for each in fields(cast("Any", kind))))
    for kind in DEFINITION_TABLES
}
"""Reads the fields of a definition in order; `astuple` would copy each of them."""


@dataclass(slots=True)
class JournalSize:
    """The length of one queue's journal since its last snapshot."""

    live: int = 0
    settled: int = 0
    rows: int = 0

    @property
    def needs_snapshot(self) -> bool:
        """The thresholds keep the cost of snapshots in proportion to the size of the queue."""
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
        self.journal_sizes: dict[int, JournalSize] = {}
        self.trimmed_to = 0
        """Retention has passed these ids; messages settled below it are kept in `settled_late`."""
        self.settled_late: array[int] = array("Q")
        self.unkept_scanned_to = 0
        """How far retention has looked for content that history does not keep."""
        self.unclaimed_parts: set[int] = set()
        """Parts of bodies whose message is not stored yet; those of a crash are not here."""
        self.has_parts = False
        """Whether there may be parts of large bodies at all."""
        self.has_log_cuts = False
        """Whether `LOG_CUTS` is stored. It is valid until a batch commits, and must go then."""

    def save_log_cuts(self, batch: Batch) -> None:
        """Store where the logs end before they get records that are atomic with this batch.

        After a crash the logs are cut there, so the batch is in all files or in none.
        """
        if batch.atomic and batch.has_sql:
            ends = dict(sink.end() for sink in batch.sinks_with(batch.atomic))
            if ends:
                self.set_meta(LOG_CUTS, orjson.dumps(ends).decode())
                self.has_log_cuts = True

    def run(self, batch: Batch, now_ms: int) -> tuple[int, ...]:
        """Commit the batch; returns those of its queues that need a snapshot."""
        self._execute(statements.BEGIN)
        if batch.parts:
            self._insert_parts(batch.parts)
        self._insert_messages(batch.runs, is_ordered=batch.is_ordered)
        if batch.log_ends:
            self._save(batch.log_ends, partial(statements.upsert, LogEnd))
        if batch.changes:
            self._change_definitions(batch, now_ms)
        self._insert_events(batch, now_ms)
        if self.has_log_cuts:
            self.set_meta(LOG_CUTS, "{}")
        self._execute(statements.COMMIT)
        self.unclaimed_parts -= batch.released_parts
        self.has_log_cuts = False
        return self._count_journals(batch)

    def record_log_ends(self, ends: Sequence[LogEnd]) -> None:
        self._save(ends, partial(statements.upsert, LogEnd))

    def run_unsynced(self, batch: Batch, now_ms: int) -> tuple[int, ...]:
        """`run` without a sync: safe from a crash, and from a power failure after the next sync."""
        self._execute(statements.SYNC_LATER)
        try:
            return self.run(batch, now_ms)
        finally:
            self.roll_back()  # the level cannot be changed within a transaction
            self._execute(self._sync_at_commit)

    def sync(self) -> None:
        """Commit a row that does not change anything: every commit syncs all commits before it."""
        self.set_meta("clean", "0")

    def note_damage(self) -> None:
        """The next start repairs the database."""
        self.set_meta(NEEDS_REPAIR, "1")

    def roll_back(self) -> None:
        if self._connection.in_transaction:
            self._execute(statements.ROLLBACK)

    def set_meta(self, key: str, value: str) -> None:
        self._execute(compiled.SET_META, (key, value))

    def _insert_messages(self, runs: list[Run | StagedPack], *, is_ordered: bool) -> None:
        """INSERT INTO message_packs: writes messages to SQLite, many of them in one row."""
        if not runs:
            return
        flat: list[object] = []
        for row in encode_packs(runs if is_ordered else _in_order(runs)):
            flat += row
            self.last_message = max(self.last_message, row.last_id)
            if row.first_part is not None:
                claimed = range(row.first_part, row.first_part + row.parts)
                self.unclaimed_parts.difference_update(claimed)
        self._insert(statements.insert_packs, _PACK_WIDTH, flat)

    def _insert_parts(self, parts: list[tuple[int, bytes]]) -> None:
        for part in parts:
            self._execute(compiled.INSERT_PART, part)
            self.unclaimed_parts.add(part[0])
            self.has_parts = True

    def _insert(self, sql: Callable[[int], str], width: int, flat: list[object]) -> None:
        rows = len(flat) // width
        if rows <= statements.MAX_EXACT_ROWS:
            self._execute(sql(rows), flat)
            return
        start = 0
        for size in statements.statement_sizes(rows):
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
        self._execute(compiled.SET_SNAPSHOT, (first, snapshot.queue_id))
        if snapshot.trim:
            # If the queue is empty, this deletes the newest events, whose ids must not be reused.
            self.set_meta(LAST_EVENT_ID, str(self.last_event))
            self._execute(compiled.TRIM_QUEUE, (snapshot.queue_id, first))
        for part in snapshot.parts:
            key = (EventKind.SNAPSHOT, snapshot.queue_id, 0, part.detail)
            self._add_event(flat, key, (now_ms, part.ids, part.sizes))

    def _add_event(self, flat: list[object], key: EventKey, group: EventGroup) -> None:
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
        saves: dict[type[object], list[Definition]] = {}
        deletes: dict[type[object], list[Definition]] = {}
        for (kind, _), (definition, saved) in batch.changes.items():
            (saves if saved else deletes).setdefault(kind, []).append(definition)
        for kind, definitions in deletes.items():
            self._delete(kind, definitions, now_ms)
        _drop_offsets(saves, deletes)
        for kind, definitions in saves.items():
            self._save(definitions, partial(statements.upsert, kind))

    def _save(self, definitions: Sequence[Definition], sql: Callable[[int], str]) -> None:
        columns = _COLUMNS[type(definitions[0])]
        flat: list[object] = list(chain.from_iterable(map(columns, definitions)))
        self._insert(sql, len(flat) // len(definitions), flat)

    def _delete(self, kind: type[object], definitions: Sequence[Definition], now_ms: int) -> None:
        if kind is QueueDefinition:
            # A queue created and deleted within one batch still needs a name in the history.
            self._save(definitions, statements.insert_missing_queues)
            ids = json_ids(cast("QueueDefinition", queue).id for queue in definitions)
            self._execute(compiled.RETIRE_QUEUES, (now_ms, ids))
            self._execute(compiled.DELETE_GROUP_OFFSETS, (ids,))
            self._execute(compiled.DELETE_LOG_ENDS, (ids,))
            return
        keys = statements.KEY_COLUMNS[kind]
        flat: list[object] = [getattr(value, name) for value in definitions for name in keys]
        self._insert(partial(statements.delete, kind), len(keys), flat)

    def _count_journals(self, batch: Batch) -> tuple[int, ...]:
        due = set()
        for queue_id, snapshot in batch.snapshots.items():
            live = sum(len(part.ids) for part in snapshot.parts)
            self.journal_sizes[queue_id] = JournalSize(live, 0, len(snapshot.parts))
        for (kind, queue_id, _, _), (_, ids, _) in batch.events.items():
            settles = FIRST_SETTLING <= kind <= LAST_SETTLING
            if not settles and kind != EventKind.ENQUEUED:
                continue
            journal = self.journal_sizes.get(queue_id)
            if journal is None:
                journal = self.journal_sizes[queue_id] = JournalSize()
            journal.rows += 1
            if settles:
                journal.settled += len(ids)
                journal.live = max(0, journal.live - len(ids))
                self._note_settled_late(ids)
            elif queue_id not in batch.snapshots:
                journal.live += len(ids)
            if journal.needs_snapshot:
                due.add(queue_id)
        for (definition_kind, key), (_, saved) in batch.changes.items():
            if definition_kind is QueueDefinition and not saved:
                deleted = cast("int", key[0])
                self.journal_sizes.pop(deleted, None)
                due.discard(deleted)
        return tuple(due)

    def _note_settled_late(self, ids: Sequence[int]) -> None:
        if self.trimmed_to and min(ids) <= self.trimmed_to:
            self.settled_late.extend(i for i in ids if i <= self.trimmed_to)


def _in_order(runs: list[Run | StagedPack]) -> list[Run | StagedPack]:
    """Runs whose ids ascend.

    A queue that rejects some messages of a run leaves them to the next queue of a fanout, so they
    may be appended after messages with higher ids.
    """
    single: list[Run | StagedPack] = []
    for run in runs:
        if isinstance(run, Run):
            single += [Run.of([message]) for message in run.messages]
        else:
            single.append(run)
    return sorted(single, key=lambda run: run.ids[0])


def _drop_offsets(
    saves: dict[type[object], list[Definition]], deletes: Mapping[type[object], list[Definition]]
) -> None:
    """Do not save the offsets of groups on logs that are deleted in the same batch."""
    offsets = cast("list[GroupOffset]", saves.pop(GroupOffset, []))
    deleted = {
        queue.id for queue in cast("list[QueueDefinition]", deletes.get(QueueDefinition, []))
    }
    kept: list[Definition] = [offset for offset in offsets if offset.queue_id not in deleted]
    if kept:
        saves[GroupOffset] = kept


def json_ids(ids: Iterable[int]) -> str:
    return orjson.dumps(list(ids)).decode()
