"""The message that each message is a copy of: the column `parent` of the table `messages`.

The event `COPIED` is in the commit of the message's content, so it is found like the events that
`routed_queues` looks for, and no later event changes it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from sqlalchemy import select

from leveret.model.history import EventKind
from leveret.queues.storage import schema
from leveret.spark_sink.arrow.packed_columns import (
    IntArray,
    pack_blobs,
    unpack_ids,
    unpack_sizes,
)
from leveret.spark_sink.arrow.routed_queues import RoutedQueuesReader
from leveret.spark_sink.arrow.sql import Database, Query, parameter

_events = schema.events.c
_rows = (
    select(_events.ids, _events.sizes)
    .where(
        _events.id >= parameter("low"),
        _events.id < parameter("stop"),
        _events.kind == int(EventKind.COPIED),
        _events.last_id >= parameter("first_message"),
        _events.first_id < parameter("end_message"),
    )
    .order_by(_events.id)
    .subquery()
    .c
)
_COPIED = Query(select(pack_blobs(_rows.ids), pack_blobs(_rows.sizes)))


def read_parents(
    database: Database, routed_queues: RoutedQueuesReader, message_ids: IntArray
) -> pa.Array:
    """The id of each message's original; null if it is not a copy. The ids are in order."""
    if not len(message_ids):
        return pa.nulls(0, pa.int64())
    first, end = int(message_ids[0]), int(message_ids[-1]) + 1
    low, stop = routed_queues.event_span(first, end)
    row = database.row(_COPIED, low=low, stop=stop, first_message=first, end_message=end)
    copies = unpack_ids(row[0])
    if not len(copies):
        return pa.nulls(len(message_ids), pa.int64())
    distances = unpack_sizes(row[1])
    order = np.argsort(copies)
    copies, distances = copies[order], distances[order]
    index = np.minimum(np.searchsorted(copies, message_ids), len(copies) - 1)
    return pa.array(message_ids - distances[index], mask=copies[index] != message_ids)
