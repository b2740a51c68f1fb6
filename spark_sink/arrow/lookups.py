"""Looks up what the numbers in stored rows refer to: queues, origins, vhosts, history policies.

The tables behind them are small and are read again for each chunk, so that a queue declared a
moment ago has its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import func, literal_column, select, union

from leveret.model.history import EventKind
from leveret.queues.storage import schema
from leveret.spark_sink.arrow.packed_columns import (
    IntArray,
    PackedColumn,
    pack_blobs,
    pack_bytes,
    pack_numbers,
    parse_numbers,
    unpack_ids,
)
from leveret.spark_sink.arrow.selection import NO_MATCH, Selection
from leveret.spark_sink.arrow.sql import Database, Query, is_one_of, parameter
from leveret.spark_sink.errors import SourceError

LOG_KIND = "stream"
DELAYED_KIND = "delayed"
_MAX_LISTED = 20
_POLICY_KINDS = ("classic", "quorum")
"""Policies apply to these kinds only, not to the internal queues of delayed exchanges."""

_queues, _events, _origins = schema.queues.c, schema.events.c, schema.origins.c

_all_queues = select(
    pack_numbers(_queues.id),
    pack_numbers(_queues.deleted_ms),
    *pack_bytes(_queues.vhost),
    *pack_bytes(_queues.name),
    *pack_bytes(_queues.kind),
    *pack_bytes(_queues.arguments),
)
_QUEUES = Query(_all_queues)
_QUEUE = Query(_all_queues.where(_queues.id == parameter("id")))
_NAMED_QUEUES = Query(
    _all_queues.where(_queues.vhost == parameter("vhost"), _queues.name == parameter("name"))
)

_all_vhosts = union(
    select(schema.vhosts.c.name.label("vhost")), select(_queues.vhost), select(_origins.vhost)
).subquery()
_VHOSTS = Query(select(*pack_bytes(_all_vhosts.c.vhost)))

_policies = (
    select(schema.policies)
    .where(schema.policies.c.operator == parameter("operator"))
    .order_by(schema.policies.c.priority.desc(), schema.policies.c.name)
    .subquery()
    .c
)
_POLICIES = Query(
    select(
        *pack_bytes(_policies.vhost),
        *pack_bytes(_policies.pattern),
        *pack_bytes(_policies.apply_to),
        *pack_bytes(_policies.definition),
    )
)
_DEFAULT_HISTORY = Query(select(schema.meta.c.value).where(schema.meta.c.key == "history"))

_origin_ids = func.json_each(parameter("ids")).table_valued("value")
_some_origins = (
    select(schema.origins)
    .where(_origins.id.in_(select(_origin_ids.c.value)))
    .order_by(_origins.id)
    .subquery()
    .c
)
_ORIGINS = Query(
    select(
        pack_numbers(_some_origins.id),
        *pack_bytes(_some_origins.vhost),
        *pack_bytes(_some_origins.user),
        *pack_bytes(_some_origins.connection),
        *pack_bytes(func.nullif(_some_origins.consumer_tag, literal_column("''"))),
    )
)


@dataclass(frozen=True, slots=True)
class QueueRow:
    id: int
    vhost: str
    name: str
    kind: str
    arguments: str
    deleted_ms: int | None


def read_queues(database: Database) -> dict[int, QueueRow]:
    """Every queue that has a row, by id; deleted queues included."""
    return _queue_rows(database.row(_QUEUES))


def read_queue(database: Database, queue_id: int) -> QueueRow | None:
    """The same of one queue, without reading the others."""
    return _queue_rows(database.row(_QUEUE, id=queue_id)).get(queue_id)


def read_queues_named(database: Database, vhost: str, name: str) -> list[QueueRow]:
    """The queue of this name, and deleted queues that had it."""
    return list(_queue_rows(database.row(_NAMED_QUEUES, vhost=vhost, name=name)).values())


def _queue_rows(row: tuple[Any, ...]) -> dict[int, QueueRow]:
    ids, deleted = parse_numbers(row[0]).tolist(), parse_numbers(row[1]).tolist()
    columns = [_texts(row, index) for index in (2, 4, 6, 8)]
    return {
        queue_id: QueueRow(queue_id, vhost, name, kind, arguments, at if at >= 0 else None)
        for queue_id, at, vhost, name, kind, arguments in zip(ids, deleted, *columns, strict=True)
    }


def selected_queues(database: Database, selection: Selection) -> dict[int, QueueRow] | None:
    """The queues that a selection names; None when it names neither queues nor vhosts."""
    if not selection.queues and not selection.vhosts:
        return None
    return {
        queue.id: queue
        for queue in read_queues(database).values()
        if (not selection.queues or queue.name in selection.queues)
        and (not selection.vhosts or queue.vhost in selection.vhosts)
    }


def require_queues(database: Database, selection: Selection, table: str | None = None) -> None:
    """Raise SourceError if the selection names a queue that was never declared in its vhosts.

    For the table `logs`, it must be a log that exists.
    """
    if not selection.queues:
        return
    noun = "log" if table == "logs" else "queue"
    known = {
        queue.name
        for queue in read_queues(database).values()
        if (not selection.vhosts or queue.vhost in selection.vhosts)
        and (table != "logs" or (queue.kind == LOG_KIND and queue.deleted_ms is None))
    }
    for name in selection.queues:
        if name not in known:
            raise SourceError(_unknown(noun, name, known))


def require_vhosts(database: Database, selection: Selection) -> None:
    """Raise SourceError if the selection names a vhost that neither exists nor has history."""
    known = {"/", *_texts(database.row(_VHOSTS), 0)}
    for name in selection.vhosts:
        if name not in known and name != NO_MATCH:
            raise SourceError(_unknown("vhost", name, known))


def _unknown(noun: str, name: str, known: Iterable[str]) -> str:
    names = [repr(each) for each in sorted(known)]
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    listed = f"choose from {', '.join(names[:_MAX_LISTED])}{more}" if names else "there is none"
    return f"There is no {noun} {name!r} in this broker's history: {listed}."


@dataclass(frozen=True, slots=True)
class _Policy:
    vhost: str
    pattern: str
    apply_to: str
    history: object


def queues_without_history(database: Database) -> list[int]:
    """Ids of queues with `history: off`: they have a journal for recovery, but no history.

    Decides as the broker does: the operator policy, else the user policy of the highest priority,
    else the broker's own setting.
    """
    default = (database.row(_DEFAULT_HISTORY) or (b"full",))[0]
    user_policies = _read_policies(database, operator=0)
    operator_policies = _read_policies(database, operator=1)
    if default != b"off" and not any(
        policy.history for policy in (*user_policies, *operator_policies)
    ):
        return []
    return [
        queue.id
        for queue in read_queues(database).values()
        if (
            _policy_history(queue, operator_policies)
            or _policy_history(queue, user_policies)
            or default.decode()
        )
        == "off"
    ]


def _read_policies(database: Database, operator: int) -> list[_Policy]:
    row = database.row(_POLICIES, operator=operator)
    columns = zip(*(_texts(row, index) for index in (0, 2, 4, 6)), strict=True)
    return [
        _Policy(vhost, pattern, apply_to, json.loads(definition).get("history"))
        for vhost, pattern, apply_to, definition in columns
    ]


def _policy_history(queue: QueueRow, policies: list[_Policy]) -> object:
    """The key `history` of the first policy that matches the queue."""
    import re2  # as the broker does; Python's `re` can take exponential time

    if queue.kind not in _POLICY_KINDS:
        return None
    for policy in policies:
        kinds = ("all", "queues", f"{queue.kind}_queues")
        applies = policy.vhost == queue.vhost and policy.apply_to in kinds
        if applies and re2.search(policy.pattern, queue.name):
            return policy.history
    return None


@dataclass(frozen=True, slots=True)
class Origins:
    """Some origins as columns. `index_of` turns origin ids into indexes of these columns."""

    ids: IntArray
    vhost: pa.Array
    user: pa.Array
    connection: pa.Array
    consumer_tag: pa.Array

    def index_of(self, origin_ids: IntArray) -> pa.Array:
        """Null where the broker itself acted."""
        if not len(self.ids):
            return pa.nulls(len(origin_ids), pa.int64())
        index = np.minimum(np.searchsorted(self.ids, origin_ids), len(self.ids) - 1)
        return pa.array(index, pa.int64(), mask=self.ids[index] != origin_ids)


def read_origins(database: Database, origin_ids: IntArray) -> Origins:
    row = database.row(_ORIGINS, ids=json.dumps(np.unique(origin_ids).tolist()))
    columns = (PackedColumn(row[i], row[i + 1]).array(pa.string()) for i in (1, 3, 5, 7))
    return Origins(parse_numbers(row[0]), *columns)


@cache
def _broker_events(kinds: tuple[EventKind, ...]) -> Query:
    return Query(
        select(
            pack_numbers(_events.queue_id),
            pack_numbers(_events["count"]),
            *pack_bytes(_events.detail),
            pack_blobs(_events.ids),
        ).where(
            _events.actor == 0,
            is_one_of(_events.kind, kinds),
            _events.last_id >= parameter("low"),
            _events.first_id < parameter("stop"),
        )
    )


class BrokerPublishedVhosts:
    """The vhosts of messages that the broker itself published, such as dead-lettered ones.

    These messages have no origin. Their vhost is that of the queues they were routed to; for an
    unroutable message it is the detail of that event. All of them are read at once, when the first
    such message is found; `span` is called then and returns the message ids to read.
    """

    def __init__(self, database: Database, span: Callable[[], tuple[int, int]]) -> None:
        self._database = database
        self._span = span
        self._vhosts: dict[int, str] | None = None

    def of(self, message_ids: IntArray) -> list[str | None]:
        if self._vhosts is None:
            self._vhosts = self._read()
        return [self._vhosts.get(number) for number in message_ids.tolist()]

    def _read(self) -> dict[int, str]:
        queues = read_queues(self._database)
        enqueued = (EventKind.ENQUEUED, EventKind.ENQUEUED_TRANSIENT)
        ids, queue_ids, _ = self._read_events(enqueued)
        by_queue = {
            number: queues[queue_id].vhost
            for number, queue_id in zip(ids, queue_ids, strict=True)
            if queue_id in queues
        }
        ids, _, vhosts = self._read_events((EventKind.UNROUTABLE,))
        unroutable = zip(ids, vhosts, strict=True)
        return by_queue | {number: vhost for number, vhost in unroutable if vhost}

    def _read_events(self, kinds: tuple[EventKind, ...]) -> tuple[list[int], list[int], list[str]]:
        """Message id, queue id and detail of each event that the broker itself caused."""
        low, stop = self._span()
        row = self._database.row(_broker_events(kinds), low=low, stop=stop)
        ids: list[int] = unpack_ids(row[4]).tolist()
        counts = parse_numbers(row[1])
        queue_ids: list[int] = np.repeat(parse_numbers(row[0]), counts).tolist()
        per_event = PackedColumn(row[2], row[3]).array(pa.string())
        details = per_event.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
        return ids, queue_ids, details.to_pylist()


def _texts(row: tuple[bytes, ...], index: int) -> list[str]:
    values: list[str] = PackedColumn(row[index], row[index + 1]).array(pa.string()).to_pylist()
    return values
