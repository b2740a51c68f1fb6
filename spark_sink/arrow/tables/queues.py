"""The table `queues`: every declared queue; deleted ones too while history refers to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from leveret.spark_sink.arrow.lookups import read_queues
from leveret.spark_sink.arrow.schemas import QUEUES, arrow_schema
from leveret.spark_sink.arrow.selection import END_OF_IDS, Request, Split
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.arrow.sql import Database


class QueuesTable:
    schema = QUEUES

    def splits(self, database: Database, request: Request, rows: int) -> Iterator[Split]:
        """One part: there are few queues."""
        yield Split(request.from_id, request.to_id, rows)

    def read(
        self, database: Database, request: Request, stats: ReadStats
    ) -> Iterator[pa.RecordBatch]:
        queues = [
            queue
            for queue in read_queues(database).values()
            if request.from_id <= queue.id < request.to_id
            and _matches(queue.name, request.selection.queues)
            and _matches(queue.vhost, request.selection.vhosts)
        ]
        values = {
            "queue_id": [queue.id for queue in queues],
            "vhost": [queue.vhost for queue in queues],
            "queue": [queue.name for queue in queues],
            "type": [queue.kind for queue in queues],
            "arguments": [queue.arguments for queue in queues],
            "deleted": [
                None if queue.deleted_ms is None else queue.deleted_ms * 1000 for queue in queues
            ],
        }
        types = {column.name: column.type for column in self.schema.columns}
        stats.columns, stats.rows, stats.scanned = request.columns, len(queues), len(queues)
        if queues:
            arrays = [pa.array(values[name], types[name]) for name in request.columns]
            yield pa.record_batch(arrays, schema=arrow_schema("queues", request.columns))

    def count(self, database: Database, request: Request) -> dict[str, Any]:
        """All queues of the selection, whatever the requested range is."""
        everything = Request("queues", 0, END_OF_IDS, ("queue_id",), request.selection)
        batches = self.read(database, everything, ReadStats())
        return {"rows": sum(batch.num_rows for batch in batches)}


def _matches(name: str, selected: tuple[str, ...]) -> bool:
    return not selected or name in selected


TABLE = QueuesTable()
