"""Names behind the numbers in stored rows: queues, origins, and which queues keep no history.

Small look-ups, read again for each chunk, so that a queue declared a moment ago has its name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_sink.database import Database
from spark_sink.errors import SourceError
from spark_sink.packed import Ints, Packed, bytes_sql, number_sql, numbers
from spark_sink.selection import Selection

LOG_KIND = "stream"


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


def partitioned_logs(database: Database) -> set[tuple[str, str]]:
    """(vhost, name) of the logs that have partitions: their exchange says so."""
    row = database.row(
        f"SELECT {bytes_sql('vhost')}, {bytes_sql('name')} FROM exchanges"  # noqa: S608
        " WHERE arguments LIKE '%\"x-super-stream\"%'"
    )
    return set(zip(_texts(row, 0), _texts(row, 2), strict=True))


def queues_without_history(database: Database) -> list[int]:
    """Ids of queues whose policy says `history: off`: their journal is nobody's history."""
    row = database.row(
        f"SELECT {number_sql('priority')}, {bytes_sql('vhost')}, {bytes_sql('pattern')},"  # noqa: S608
        f" {bytes_sql('definition')} FROM policies"
        " WHERE NOT operator AND apply_to NOT IN ('exchanges')"
    )
    definitions = [json.loads(text) for text in _texts(row, 5)]
    if not any("history" in definition for definition in definitions):
        return []
    policies = sorted(
        zip(numbers(row[0]).tolist(), _texts(row, 1), _texts(row, 3), definitions, strict=True),
        key=lambda policy: -policy[0],
    )
    return [
        queue.id
        for queue in queue_names(database).values()
        if _history_of(queue, policies) == "off"
    ]


def _history_of(
    queue: QueueName, policies: list[tuple[int, str, str, dict[str, object]]]
) -> object:
    for _, vhost, pattern, definition in policies:
        if vhost == queue.vhost and re.search(pattern, queue.name):
            return definition.get("history")
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


def _empty_as_null(column: str) -> str:
    return f"nullif({column}, '')"


def _texts(row: tuple[bytes, ...], index: int) -> list[str]:
    values: list[str] = Packed(row[index], row[index + 1]).array(pa.string()).to_pylist()
    return values
