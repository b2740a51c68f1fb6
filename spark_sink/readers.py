"""Reading a broker's data directory: what the data source and the HTTP API have in common.

Needs pyarrow, never PySpark. A `LocalSource` may stand beside a running broker: it only reads
(see `database`). It belongs to one thread. For the HTTP API:

- `answer_ranges(data_dir, params)` is the JSON of `GET /api/history/ranges`;
- `answer_export(data_dir, params)` yields the Arrow IPC stream of `GET /api/history/export`.

Both take the query string as a mapping, and the vhosts the caller may see (None: all). Both raise
SourceError, a sentence for a 400, before anything was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from spark_sink.chunks import Tally
from spark_sink.database import Database
from spark_sink.errors import SourceError
from spark_sink.events import count_events, event_conditions, read_events
from spark_sink.messages import count_messages, read_messages
from spark_sink.names import require_queues, require_vhosts
from spark_sink.planning import event_splits, message_splits, span_splits
from spark_sink.queue_table import count_queues, read_queues
from spark_sink.schemas import TABLES, arrow_schema, columns_of
from spark_sink.selection import Request, Selection, Split, request_of, selection_of, whole_number

SPLIT_ROWS = 200_000
_IDENTITY_KEYS = ("id", "created_ms", "node", "cluster")


@dataclass(frozen=True, slots=True)
class Ranges:
    """What there is, as of one moment: `messages` and `events` are of the same commit.

    A range is [first, next). For `logs` the key is the number of the partition's queue.
    """

    identity: str
    messages: tuple[int, int]
    events: tuple[int, int]
    logs: dict[int, tuple[int, int]]

    def of(self, table: str) -> dict[str, tuple[int, int]]:
        """Ranges by key: one key "next" for a table with one id, else one per partition."""
        if table == "logs":
            return {str(queue_id): span for queue_id, span in self.logs.items()}
        if table == "queues":
            return {"next": (0, 2**62)}
        return {"next": self.messages if table == "messages" else self.events}


class Source(Protocol):
    """A broker's history, from its directory or over HTTP."""

    def ranges(self, selection: Selection) -> Ranges: ...

    def splits(self, request: Request, rows: int, limit: int | None = None) -> list[Split]:
        """Parts of at most `rows` rows; `limit` is how many parts are wanted at most."""

    def read(self, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]: ...

    def count(self, request: Request) -> dict[str, Any]:
        """`rows`, and what else the source counts itself."""

    def check(self, selection: Selection) -> None:
        """Raise SourceError when the selection names what does not exist."""

    def close(self) -> None: ...


_READERS: dict[str, Callable[[Database, Request, Tally], Iterator[pa.RecordBatch]]] = {
    "messages": read_messages,
    "events": read_events,
    "queues": read_queues,
}


class LocalSource:
    """A data directory, read in place."""

    def __init__(self, data_dir: str | Path) -> None:
        self._database = Database(data_dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalSource {self._database.data_dir}>"

    def close(self) -> None:
        self._database.close()

    def check(self, selection: Selection) -> None:
        require_vhosts(self._database, selection)
        require_queues(self._database, selection)
        event_conditions(self._database, selection)

    def ranges(self, selection: Selection) -> Ranges:
        row = self._database.row(
            "SELECT (SELECT min(id) FROM messages), (SELECT max(id) FROM messages),"
            " (SELECT min(id) FROM events), (SELECT max(id) FROM events)"
        )
        return Ranges(
            identity=self._identity(),
            messages=_span(row[0], row[1]),
            events=_span(row[2], row[3]),
            logs={part.queue_id: (part.first, part.next) for part in self._logs(selection)},
        )

    def splits(self, request: Request, rows: int, limit: int | None = None) -> list[Split]:
        return list(islice(self._splits(request, rows), limit))

    def read(self, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]:
        if request.table == "logs":
            from spark_sink.logs import read_logs

            return read_logs(self._database, request, tally)
        return _READERS[request.table](self._database, request, tally)

    def count(self, request: Request) -> dict[str, Any]:
        if request.table == "messages":
            return dict(count_messages(self._database, request))
        if request.table == "queues":
            return dict(count_queues(self._database, request.selection))
        if request.table == "events":
            groups = count_events(self._database, request)
            return {"rows": sum(int(group["rows"]) for group in groups), "groups": groups}
        from spark_sink.logs import count_logs

        groups = count_logs(self._database, request)
        return {"rows": sum(int(group["rows"]) for group in groups), "groups": groups}

    def _splits(self, request: Request, rows: int) -> Iterator[Split]:
        span = (request.from_id, request.to_id)
        if request.table == "messages":
            yield from message_splits(self._database, *span, rows)
        elif request.table == "events":
            yield from event_splits(self._database, *span, rows)
        elif request.table == "queues":
            yield Split(*span, rows)
        else:
            for part in self._logs(request.selection):
                if request.queue_id in (None, part.queue_id):
                    low, high = max(span[0], part.first), min(span[1], part.next)
                    yield from span_splits(low, high, rows, part.queue_id)

    def _logs(self, selection: Selection) -> list[Any]:
        from spark_sink.logs import partitions

        return list(partitions(self._database, selection))

    def _identity(self) -> str:
        marks = ", ".join("?" * len(_IDENTITY_KEYS))
        row = self._database.row(
            "SELECT group_concat(key || '=' || value, ' ') FROM"  # noqa: S608
            f" (SELECT key, value FROM meta WHERE key IN ({marks}) ORDER BY key)",
            _IDENTITY_KEYS,
        )
        return (row[0] or b"").decode()


def answer_ranges(
    data_dir: str | Path, params: Mapping[str, str], vhosts: frozenset[str] | None = None
) -> dict[str, Any]:
    """Ranges of every table; with `table`, also what a reader of that table needs.

    `rows`: cut [from_id, to_id) into parts of that many rows, at most `limit` parts.
    `count`: count the rows of [from_id, to_id). `check`: refuse names that do not exist.
    """
    selection = _allowed(selection_of(params), vhosts)
    with LocalSource(data_dir) as source:
        if params.get("check"):
            source.check(selection)
        answer: dict[str, Any] = {"tables": list(TABLES)}
        ranges = source.ranges(selection)
        answer |= {"identity": ranges.identity, "messages": ranges.messages}
        answer |= {"events": ranges.events, "logs": ranges.logs}
        if not params.get("table"):
            return answer
        request = replace(request_of(params), selection=selection)
        if params.get("rows"):
            rows = max(1, whole_number(params, "rows", SPLIT_ROWS))
            limit = whole_number(params, "limit", 0) or None
            answer["splits"] = [asdict(split) for split in source.splits(request, rows, limit)]
        if params.get("count"):
            answer["count"] = source.count(request)
        return answer


def answer_export(
    data_dir: str | Path, params: Mapping[str, str], vhosts: frozenset[str] | None = None
) -> Iterator[bytes]:
    """The rows asked for as an Arrow IPC stream, in pieces; memory stays at one batch."""
    request = request_of(params)
    request = replace(request, selection=_allowed(request.selection, vhosts))
    source = LocalSource(data_dir)
    return _stream(source, request)


def _stream(source: LocalSource, request: Request) -> Iterator[bytes]:
    sink = _Pieces()
    try:
        with pa.ipc.new_stream(
            pa.PythonFile(sink, "w"), arrow_schema(request.table, request.columns)
        ) as writer:
            for batch in source.read(request, Tally()):
                writer.write_batch(batch)
                yield sink.take()
        yield sink.take()
    finally:
        source.close()


class _Pieces:
    """A file that keeps what is written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def flush(self) -> None:
        """Nothing to flush: pieces are taken, not sent."""

    def close(self) -> None:
        """Stays open, so that the end of the stream can still be taken."""

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


def all_columns(table: str) -> tuple[str, ...]:
    return tuple(column.name for column in columns_of(table))


def chosen_tables(names: Iterable[str]) -> tuple[str, ...]:
    tables = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in tables:
        columns_of(name)
    if not tables:
        raise SourceError(f"Name at least one table: {', '.join(TABLES)}.")
    return tables


def _allowed(selection: Selection, vhosts: frozenset[str] | None) -> Selection:
    return selection if vhosts is None else selection.within(vhosts)


def _span(first: Any, last: Any) -> tuple[int, int]:
    return (0, 0) if first is None else (int(first), int(last) + 1)
