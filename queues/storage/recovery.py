"""Reads what the database holds when the broker starts.

Runs once, on the starting thread, before the writer thread exists. Reads the definitions, and each
queue's journal from its last snapshot on. A journal row that does not match its checksum is left
out, and its queue is named in `RecoveredState.damaged`. Messages are not marked as redelivered here
but by their queue (queues/classic/crash_redelivery.py).
"""

import json
import sqlite3
import struct
from dataclasses import fields
from typing import Any, Final, cast

from leveret.model.definitions import DEFINITION_TABLES, Definition, Origin, QueueDefinition
from leveret.model.history import DELIVERY_KINDS, FIRST_SETTLING, LAST_SETTLING, EventKind
from leveret.model.store import DELIVERY_COUNT, LiveMessages, LostData, RecoveredState
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage.journal_replay import JournalReplay
from leveret.queues.storage.packing import event_checksum, unpack_ids
from leveret.queues.storage.transaction import LOG_CUTS, JournalSize

ENQUEUED: Final = int(EventKind.ENQUEUED)


def read_meta(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute(compiled.GET_META).fetchall())


def read_definitions(connection: sqlite3.Connection) -> tuple[Definition, ...]:
    """All definitions except origins, which only history needs."""
    definitions: list[Definition] = []
    known: dict[Any, Any] = {}
    shared = known.setdefault  # thousands of bindings repeat the names of a few objects
    for kind, table in DEFINITION_TABLES.items():
        if kind is Origin:
            continue
        flags = [at for at, field in enumerate(fields(kind)) if field.type in ("bool", bool)]  # type: ignore[arg-type]
        for row in connection.execute(compiled.SELECT_DEFINITIONS[table]):
            values = [shared(value, value) for value in row]
            for at in flags:
                values[at] = bool(values[at])
            definitions.append(cast("Definition", kind(*values)))
    return tuple(definitions)


class Recovery:
    """Reads the journals; the writer continues counting from `journal_sizes`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.live: dict[int, tuple[LiveMessages, ...]] = {}
        self.damaged: dict[int, str] = {}
        self.delivery_counts: dict[int, dict[int, int]] = {}
        self.journal_sizes: dict[int, JournalSize] = {}

    def number(self, sql: str) -> int:
        return int(self._connection.execute(sql).fetchone()[0])

    def read_journals(self) -> None:
        queues = self._connection.execute(compiled.QUEUES_TO_FOLD).fetchall()
        for queue_id, snapshot_event, counts_deliveries in queues:
            self.read_journal(queue_id, snapshot_event, counts_deliveries)

    def read_journal(
        self, queue_id: int, snapshot_event: int, counts_deliveries: bool = False
    ) -> None:
        sql = compiled.JOURNAL_WITH_DELIVERIES if counts_deliveries else compiled.JOURNAL
        replay, bad_rows = JournalReplay(), 0
        try:
            for row in self._connection.execute(sql, (queue_id, snapshot_event)):
                if not _add_row(replay, row):
                    bad_rows += 1
        except sqlite3.DatabaseError as error:
            self.damaged[queue_id] = f"the journal cannot be read further: {error}"
        if bad_rows:
            self.damaged[queue_id] = f"{bad_rows} journal rows do not match their checksums"
        parts = replay.result()
        if parts:
            self.live[queue_id] = parts
        if counts_deliveries and parts:
            self.delivery_counts[queue_id] = replay.delivery_counts(parts)
        if replay.rows:
            live = sum(len(part.ids) for part in parts)
            self.journal_sizes[queue_id] = JournalSize(live, replay.settled, replay.rows)

    def result(self, meta: dict[str, str]) -> RecoveredState:
        # Above every id that may count as delivered: a new message must not look redelivered.
        last = max(
            self.number(compiled.LAST_MESSAGE),
            self.number(compiled.LAST_DELIVERED),
            int(meta.get("last_message_id", 0)),
        )
        return RecoveredState(
            definitions=read_definitions(self._connection),
            live=self.live,
            damaged=self.damaged,
            delivery_counts=self.delivery_counts,
            log_cuts=json.loads(meta.get(LOG_CUTS, "{}")),
            last_message_id=last,
            last_queue_id=self.number(compiled.LAST_QUEUE),
            last_origin_id=self.number(compiled.LAST_ORIGIN),
            clean=meta.get("clean", "1") == "1",
        )


def lost_journal_rows(recovered: RecoveredState) -> list[LostData]:
    """The queues with damaged rows in their journals."""
    queues = (item for item in recovered.definitions if isinstance(item, QueueDefinition))
    return [
        LostData(
            "events",
            f"queue {queue.name!r}: {recovered.damaged[queue.id]}",
            queue.vhost,
            queue.name,
        )
        for queue in queues
        if queue.id in recovered.damaged
    ]


def _add_row(replay: JournalReplay, row: tuple[Any, ...]) -> bool:
    """False if the row is damaged."""
    time_ms, kind, queue_id, actor, detail, count, ids, sizes, crc = row
    try:
        expected = event_checksum(time_ms, kind, queue_id, actor, detail, count, ids, sizes)
        if expected != crc:
            return False
        if kind == ENQUEUED and detail is None:  # most rows
            replay.enqueue(None, ids, sizes)
        elif FIRST_SETTLING <= kind <= LAST_SETTLING:
            replay.settle(ids)
        elif kind in DELIVERY_KINDS:
            replay.deliver(unpack_ids(ids), int(detail or 1))
        elif detail is not None and detail.startswith(DELIVERY_COUNT):
            replay.deliver(unpack_ids(ids), int(detail.removeprefix(DELIVERY_COUNT)))
        else:
            replay.enqueue(detail, ids, sizes)
    except (TypeError, ValueError, AttributeError, struct.error):
        return False  # damage has changed a value's type or range
    return True
