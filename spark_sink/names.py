"""Names behind the numbers in stored rows: queues, origins, and which queues keep no history.

Small look-ups, read again for each chunk, so that a queue declared a moment ago has its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from leveret.model.history import EventKind
from spark_sink.database import Database
from spark_sink.errors import SourceError
from spark_sink.packed import Ints, Packed, bytes_sql, number_sql, numbers
from spark_sink.selection import NOTHING, Selection

LOG_KIND = "stream"
DELAYED_KIND = "delayed"
_GOVERNED = ("classic", "quorum")
"""What waits at an exchange for its time to come is in a queue that no policy governs."""


@dataclass(frozen=True, slots=True)
class QueueName:
    id: int
    vhost: str
    name: str
    kind: str
    arguments: str
    deleted_ms: int | None


def queue_names(database: Database) -> dict[int, QueueName]:
    """Every queue that has a row, deleted ones included."""
    row = database.row(
        f"SELECT {number_sql('id')}, {number_sql('deleted_ms')}, {bytes_sql('vhost')},"  # noqa: S608
        f" {bytes_sql('name')}, {bytes_sql('kind')}, {bytes_sql('arguments')} FROM queues"
    )
    ids, deleted = numbers(row[0]).tolist(), numbers(row[1]).tolist()
    columns = [_texts(row, index) for index in (2, 4, 6, 8)]
    return {
        queue_id: QueueName(queue_id, vhost, name, kind, arguments, at if at >= 0 else None)
        for queue_id, at, vhost, name, kind, arguments in zip(ids, deleted, *columns, strict=True)
    }


def chosen_queues(database: Database, selection: Selection) -> dict[int, QueueName] | None:
    """The queues a selection names; None when it names none, so that all are meant."""
    if not selection.queues and not selection.vhosts:
        return None
    return {
        queue.id: queue
        for queue in queue_names(database).values()
        if (not selection.queues or queue.name in selection.queues)
        and (not selection.vhosts or queue.vhost in selection.vhosts)
    }


def require_queues(database: Database, selection: Selection) -> None:
    """Say so when a queue is asked for by name and was never declared."""
    known = {queue.name for queue in queue_names(database).values()}
    for name in selection.queues:
        if name not in known:
            raise SourceError(
                f"There is no queue {name!r} in this broker's history: check the name, "
                "or leave the queue out to export all of them."
            )


def require_vhosts(database: Database, selection: Selection) -> None:
    """Say so when a vhost is asked for that neither exists nor is in the history."""
    row = database.row(
        f"SELECT {bytes_sql('vhost')} FROM (SELECT name AS vhost FROM vhosts"  # noqa: S608
        " UNION SELECT vhost FROM queues UNION SELECT vhost FROM origins)"
    )
    known = {"/", *_texts(row, 0)}
    for name in selection.vhosts:
        if name not in known and name != NOTHING:
            raise SourceError(
                f"There is no vhost {name!r} in this broker's history: check the name, "
                "or leave the vhost out to export all of them."
            )


@dataclass(frozen=True, slots=True)
class _Policy:
    vhost: str
    pattern: str
    apply_to: str
    history: object


def queues_without_history(database: Database) -> list[int]:
    """Ids of queues that keep a journal for themselves and no history for anyone.

    As the broker decides it: an operator policy, else the policy of the highest priority, else
    the broker's own setting.
    """
    default = (database.row("SELECT value FROM meta WHERE key = 'history'") or (b"full",))[0]
    users, operators = _policies(database, operator=0), _policies(database, operator=1)
    if default != b"off" and not any(policy.history for policy in (*users, *operators)):
        return []
    return [
        queue.id
        for queue in queue_names(database).values()
        if (_asked(queue, operators) or _asked(queue, users) or default.decode()) == "off"
    ]


def _policies(database: Database, operator: int) -> list[_Policy]:
    row = database.row(
        f"SELECT {bytes_sql('vhost')}, {bytes_sql('pattern')}, {bytes_sql('apply_to')},"  # noqa: S608
        f" {bytes_sql('definition')} FROM (SELECT * FROM policies WHERE operator = ?"
        " ORDER BY priority DESC, name)",
        [operator],
    )
    found = zip(*(_texts(row, index) for index in (0, 2, 4, 6)), strict=True)
    return [
        _Policy(vhost, pattern, apply_to, json.loads(definition).get("history"))
        for vhost, pattern, apply_to, definition in found
    ]


def _asked(queue: QueueName, policies: list[_Policy]) -> object:
    """What the first policy that governs a queue says about its history."""
    import re2  # as the broker matches it; a pattern of Python's own may take for ever

    if queue.kind not in _GOVERNED:
        return None
    for policy in policies:
        kinds = ("all", "queues", f"{queue.kind}_queues")
        governs = policy.vhost == queue.vhost and policy.apply_to in kinds
        if governs and re2.search(policy.pattern, queue.name):
            return policy.history
    return None


@dataclass(frozen=True, slots=True)
class Origins:
    """Some origins as columns. `index_of` turns origin numbers into places in the columns."""

    ids: Ints
    vhost: pa.Array
    user: pa.Array
    connection: pa.Array
    consumer_tag: pa.Array

    def index_of(self, wanted: Ints) -> pa.Array:
        """Null where the broker itself acted."""
        if not len(self.ids):
            return pa.nulls(len(wanted), pa.int64())
        place = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        return pa.array(place, pa.int64(), mask=self.ids[place] != wanted)


def origins(database: Database, wanted: Ints) -> Origins:
    row = database.row(
        f"SELECT {number_sql('id')}, {bytes_sql('vhost')}, {bytes_sql('user')},"  # noqa: S608
        f" {bytes_sql('connection')}, {bytes_sql(_empty_as_null('consumer_tag'))}"
        " FROM (SELECT * FROM origins WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id)",
        [json.dumps(np.unique(wanted).tolist())],
    )
    columns = (Packed(row[i], row[i + 1]).array(pa.string()) for i in (1, 3, 5, 7))
    return Origins(numbers(row[0]), *columns)


class Republished:
    """The vhosts of messages that the broker itself published, such as dead-lettered ones.

    They have no origin that would tell; the queues they were put into do, and for one that no
    queue took the detail of that event. Read once, when the
    first such message is met, for the whole id range of a request, which `span` tells then.
    """

    def __init__(self, database: Database, span: Callable[[], tuple[int, int]]) -> None:
        self._database = database
        self._span = span
        self._found: dict[int, str] | None = None

    def vhosts(self, wanted: Ints) -> list[str | None]:
        if self._found is None:
            self._found = self._read()
        return [self._found.get(number) for number in wanted.tolist()]

    def _read(self) -> dict[int, str]:
        queues = queue_names(self._database)
        enqueued = (EventKind.ENQUEUED, EventKind.ENQUEUED_TRANSIENT)
        ids, queue_ids, _ = self._events(enqueued)
        found = {
            number: queues[queue_id].vhost
            for number, queue_id in zip(ids, queue_ids, strict=True)
            if queue_id in queues
        }
        ids, _, vhosts = self._events((EventKind.UNROUTABLE,))
        return found | {number: vhost for number, vhost in zip(ids, vhosts, strict=True) if vhost}

    def _events(self, kinds: tuple[EventKind, ...]) -> tuple[list[int], list[int], list[str]]:
        """Message, queue and detail of each event of the broker itself."""
        row = self._database.row(
            f"SELECT {number_sql('queue_id')}, {number_sql('count')}, {bytes_sql('detail')},"  # noqa: S608
            " group_concat(cast(ids as text), '') FROM events WHERE actor = 0"
            f" AND kind IN ({', '.join(str(int(kind)) for kind in kinds)})"
            " AND last_id >= ? AND first_id < ?",
            self._span(),
        )
        ids: list[int] = np.frombuffer(row[4] or b"", "<u8").astype(np.int64).tolist()
        counts = numbers(row[1])
        queue_ids: list[int] = np.repeat(numbers(row[0]), counts).tolist()
        details = Packed(row[2], row[3]).array(pa.string())
        told = details.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
        return ids, queue_ids, told.to_pylist()


def _empty_as_null(column: str) -> str:
    return f"nullif({column}, '')"


def _texts(row: tuple[bytes, ...], index: int) -> list[str]:
    values: list[str] = Packed(row[index], row[index + 1]).array(pa.string()).to_pylist()
    return values
