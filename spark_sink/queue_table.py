"""The table `queues`: what was declared, deleted queues included while history names them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_sink.chunks import Tally
from spark_sink.database import Database
from spark_sink.names import queue_names
from spark_sink.schemas import arrow_schema, columns_of
from spark_sink.selection import Request, Selection


def read_queues(database: Database, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]:
    """One batch: there are few queues."""
    chosen = [
        queue
        for queue in queue_names(database).values()
        if request.from_id <= queue.id < request.to_id
        and _is_wanted(queue.name, request.selection.queues)
        and _is_wanted(queue.vhost, request.selection.vhosts)
    ]
    values = {
        "queue_id": [queue.id for queue in chosen],
        "vhost": [queue.vhost for queue in chosen],
        "queue": [queue.name for queue in chosen],
        "type": [queue.kind for queue in chosen],
        "arguments": [queue.arguments for queue in chosen],
        "deleted": [
            None if queue.deleted_ms is None else queue.deleted_ms * 1000 for queue in chosen
        ],
    }
    kinds = {column.name: column.type for column in columns_of("queues")}
    tally.columns, tally.rows, tally.scanned = request.columns, len(chosen), len(chosen)
    if chosen:
        arrays = [pa.array(values[name], kinds[name]) for name in request.columns]
        yield pa.record_batch(arrays, schema=arrow_schema("queues", request.columns))


def count_queues(database: Database, selection: Selection) -> dict[str, int]:
    request = Request("queues", 0, 2**62, ("queue_id",), selection)
    return {"rows": sum(batch.num_rows for batch in read_queues(database, request, Tally()))}


def _is_wanted(name: str, chosen: tuple[str, ...]) -> bool:
    return not chosen or name in chosen
