"""What the database holds when the broker starts.

Runs once, on the starting thread, before the writer thread exists. Reads
definitions, and each queue's journal from its last snapshot on. A journal row that does not match
its checksum is left out and its queue named in `Recovered.damaged`.
"""

import json
import sqlite3
import struct
from array import array
from dataclasses import fields
from typing import Any, cast

from leveret.model.history import FIRST_SETTLING, HANDED_OUT_KINDS, LAST_SETTLING
from leveret.model.store import ATTEMPTS, Definition, Live, Origin, Recovered
from queues.storage import statements
from queues.storage.fold import Fold
from queues.storage.packing import event_checksum, unpack_ids, unpack_sizes
from queues.storage.transaction import LOG_ENDS, Tally


def read_meta(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute(statements.GET_META).fetchall())


def read_definitions(connection: sqlite3.Connection) -> tuple[Definition, ...]:
    """Everything but origins: nobody needs those back."""
    found: list[Definition] = []
    for kind in statements.DEFINITION_TABLES:
        if kind is Origin:
            continue
        flags = [at for at, field in enumerate(fields(kind)) if field.type in ("bool", bool)]  # type: ignore[arg-type]
        for row in connection.execute(statements.select(kind)):
            values = list(row)
            for at in flags:
                values[at] = bool(values[at])
            found.append(cast("Definition", kind(*values)))
    return tuple(found)


class Recovery:
    """Reads the journals; `tallies` are what the writer goes on counting from."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.live: dict[int, tuple[Live, ...]] = {}
        self.damaged: dict[int, str] = {}
        self.attempts: dict[int, dict[int, int]] = {}
        self.tallies: dict[int, Tally] = {}

    def number(self, sql: str) -> int:
        return int(self._connection.execute(sql).fetchone()[0])

    def read_journals(self) -> None:
        for queue_id, snapshot_event, counts in self._connection.execute(
            statements.QUEUES_TO_FOLD
        ).fetchall():
            sql = statements.JOURNAL_WITH_DELIVERIES if counts else statements.JOURNAL
            self._read_journal(queue_id, snapshot_event, sql)

    def _read_journal(self, queue_id: int, snapshot_event: int, sql: str) -> None:
        fold, bad = Fold(), 0
        try:
            for row in self._connection.execute(sql, (queue_id, snapshot_event)):
                if not _add(fold, row):
                    bad += 1
        except sqlite3.DatabaseError as error:
            self.damaged[queue_id] = f"the journal cannot be read further: {error}"
        if bad:
            self.damaged[queue_id] = f"{bad} journal rows do not match their checksums"
        parts = fold.result()
        if parts:
            self.live[queue_id] = parts
            self.attempts[queue_id] = fold.attempts(parts)
        if fold.rows:
            alive = sum(len(part.ids) for part in parts)
            self.tallies[queue_id] = Tally(alive, fold.settled, fold.rows)

    def result(self, meta: dict[str, str]) -> Recovered:
        lease = int(meta.get("lease", 0))
        # Above every id that may count as delivered: what is new must not look redelivered.
        last = max(
            self.number(statements.LAST_MESSAGE),
            self.number(statements.LAST_DELIVERED),
            int(meta.get("last_message_id", 0)),
            lease,
        )
        return Recovered(
            definitions=read_definitions(self._connection),
            live=self.live,
            damaged=self.damaged,
            attempts=self.attempts,
            log_ends=json.loads(meta.get(LOG_ENDS, "{}")),
            lease=lease,
            last_message_id=last,
            last_queue_id=self.number(statements.LAST_QUEUE),
            last_origin_id=self.number(statements.LAST_ORIGIN),
            clean=meta.get("clean", "1") == "1",
        )


def _add(fold: Fold, row: tuple[Any, ...]) -> bool:
    """False when the row is damaged."""
    time_ms, kind, queue_id, actor, detail, count, ids, sizes, crc = row
    try:
        expected = event_checksum(time_ms, kind, queue_id, actor, detail, count, ids, sizes)
        if expected != crc:
            return False
        message_ids = unpack_ids(ids)
        if FIRST_SETTLING <= kind <= LAST_SETTLING:
            fold.settle(message_ids)
        elif kind in HANDED_OUT_KINDS:
            fold.hand_out(message_ids, int(detail or 1))
        elif detail is not None and detail.startswith(ATTEMPTS):
            fold.hand_out(message_ids, int(detail.removeprefix(ATTEMPTS)))
        else:
            body_sizes: array[int] = unpack_sizes(sizes)
            fold.enter(detail, message_ids, body_sizes)
    except (TypeError, ValueError, AttributeError, struct.error):
        return False  # rot has changed a value's type or range
    return True
