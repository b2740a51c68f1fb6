"""What reading the tables `messages` and `events` has in common: conditions, vhosts, lost rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, select

from leveret.queues.storage import schema
from leveret.queues.storage.trims import EVENTS_KEY, MESSAGES_KEY, Trims
from leveret.spark_sink.arrow.lookups import BrokerPublishedVhosts
from leveret.spark_sink.arrow.packed_columns import BoolArray, IntArray, text_array
from leveret.spark_sink.arrow.selection import Request, Selection
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.arrow.sql import Database, Query

Conditions = list[ColumnElement[bool]]
_TRIMS = {
    key: Query(select(schema.meta.c.value).where(schema.meta.c.key == key))
    for key in (MESSAGES_KEY, EVENTS_KEY)
}


class LostRows:
    """Looks for rows of a planned read that retention deletes before they are read."""

    def __init__(self, database: Database, request: Request, stats: ReadStats, key: str) -> None:
        self._database = database
        self._trims = request.trims
        self._stats = stats
        self._query = _TRIMS[key]

    def note(self, span: tuple[int, int]) -> None:
        """Call it in the snapshot in which the rows of `span` were read."""
        if self._trims is None:
            return
        row = self._database.row(self._query)
        deleted = Trims.from_json(row[0] if row else None).last_deleted_since(self._trims)
        if deleted is not None and deleted >= span[0]:
            self._stats.lost.append((span[0], min(deleted + 1, span[1])))


def fill_broker_vhosts(
    vhosts: pa.Array, by_broker: BoolArray, ids: IntArray, broker_vhosts: BrokerPublishedVhosts
) -> pa.Array:
    """The column with the vhosts of messages that the broker published filled in."""
    if not by_broker.any():
        return vhosts
    missing = text_array(broker_vhosts.of(ids[by_broker]))
    return pc.replace_with_mask(vhosts, pa.array(by_broker), missing)


def time_conditions(
    since: ColumnElement[int], until: ColumnElement[int], selection: Selection
) -> Conditions:
    """`since` is the column that must not be too old, and `until` the one not too young."""
    conditions: Conditions = []
    if selection.since_ms is not None:
        conditions.append(since >= selection.since_ms)
    if selection.until_ms is not None:
        conditions.append(until < selection.until_ms)
    return conditions


def has_origin_in_vhosts(column: ColumnElement[int], selection: Selection) -> ColumnElement[bool]:
    """SQL that is true where the origin belongs to a vhost of the selection."""
    origins = schema.origins.c
    return column.in_(select(origins.id).where(origins.vhost.in_(selection.vhosts)))


def is_selected_vhost(vhosts: pa.Array, selection: Selection) -> BoolArray:
    selected = pa.array(selection.vhosts, pa.string())
    mask: BoolArray = pc.is_in(vhosts, value_set=selected).to_numpy(zero_copy_only=False)
    return mask


def filter_batch(batch: pa.RecordBatch, maybe_mask: Any) -> pa.RecordBatch:
    return batch if maybe_mask is None else batch.filter(pa.array(maybe_mask))
