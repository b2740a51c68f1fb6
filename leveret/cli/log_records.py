"""`leveret log produce` and `leveret log consume`: records from standard input and to output.

Key and value of a record are sent as text if they are UTF-8, else as base64 (`encoding`). A group
member prints records and then commits them: a crash in between prints records again and skips none.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Protocol

import typer

from leveret.cli.api import MAX_WAIT_SECONDS, InVhost, Json, decoded, encoded, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.inputs import line_batches, pairs
from leveret.cli.output import Formatter, counted, write_csv
from leveret.cli.session import Session, client_command

commands = typer.Typer()
command = client_command(commands)

LogName = Annotated[str, typer.Argument(help="Name of the log.")]

_BATCH = 500
_SHORT_WAIT = 0.5
_CSV_COLUMNS = ("partition", "offset", "timestamp", "key", "value")


def log_named(session: Session, name: str) -> InVhost:
    return session.inside(f"log '{name}'")


@contextlib.contextmanager
def suggesting(session: Session, name: str, group: str | None = None) -> Iterator[None]:
    """If a log or its group is not found, suggest one with a similar name."""
    try:
        yield
    except CliError as error:
        if error.code is not ExitCode.NOT_FOUND:
            raise
        raise CliError(_maybe_suggestion(session, name, group) or str(error), error.code) from error


def _maybe_suggestion(session: Session, name: str, group: str | None) -> str | None:
    try:
        logs = session.api.get(path("logs", session.vhost))
    except CliError:
        return None
    groups = {log["name"]: log.get("groups") or [] for log in logs}
    if name not in groups:
        return f"there is no {log_named(session, name)}" + did_you_mean(name, groups)
    if group is not None and group not in groups[name]:
        where = f"group '{group}' on {log_named(session, name)}"
        return f"there is no {where}" + did_you_mean(group, groups[name])
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error that suggests a known name."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else "."


@command
def produce(
    session: Session,
    name: LogName,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", help="Separator between key and value in a line."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", min=0, help="Append to this partition.", show_default="by key"),
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="Header to add.")
    ] = None,
) -> None:
    """Append each line of standard input as a record; confirmed records are on disk."""
    common: dict[str, Json] = {} if partition is None else {"partition": partition}
    common |= {"headers": pairs(headers, "header")} if headers else {}
    where, what, sent = path("logs", session.vhost, name, "publish"), log_named(session, name), 0
    is_typed = sys.stdin.isatty()
    if is_typed:
        session.out.remark("Type one record per line; end with Ctrl-D.")
    with session.out.progress(is_typed=is_typed) as progress:
        task = progress.add_task("producing", total=None)
        for lines in line_batches(sys.stdin.fileno()):
            records = [_record(line, key_separator, common) for line in lines]
            for start in range(0, len(records), _BATCH):
                batch = records[start : start + _BATCH]
                with suggesting(session, name):
                    session.api.post(where, {"records": batch}, what=what)
                sent += len(batch)
                progress.advance(task, len(batch))
    session.out.remark(f"{counted(sent, 'record')} produced.")


def _record(line: bytes, separator: str | None, common: dict[str, Json]) -> dict[str, Json]:
    key, value = None, line
    if separator is not None:
        head, match, tail = line.partition(separator.encode())
        if not match:
            shown = line[:40].decode("utf-8", "replace")
            raise CliError(f"the line {shown!r} has no separator {separator!r} after its key.")
        key, value = head, tail
    text, encoding = encoded(value)
    record: dict[str, Json] = {**common, "value": text}
    if encoding == "base64":
        record["encoding"] = "base64"
    if key is not None:
        record["key"] = key.decode("utf-8", "replace")
    return record


class Reader(Protocol):
    """A position in a log that advances."""

    def fetch(self, count: int, wait: float) -> list[Json]:
        """Return the next records; wait for the first one up to `wait` seconds."""

    def settle(self, records: list[Json]) -> None:
        """Record that these records have been printed."""

    def close(self) -> None:
        """Stop reading."""


class GroupReader:
    """A member of a group: reads its share of the partitions and commits what it has printed.

    A member whose session has expired, or whose broker was restarted, joins again.
    """

    def __init__(self, session: Session, name: str, group: str, start: int | str) -> None:
        self._session = session
        self._base = path("logs", session.vhost, name, "groups", group, "members")
        self._what = log_named(session, name)
        self._name = name
        self._start = start
        self._member: str | None = None

    def fetch(self, count: int, wait: float) -> list[Json]:
        body = {"count": count, "wait": wait}
        for _ in range(2):
            where = f"{self._base}/{self._joined()}/fetch"
            try:
                answer = self._session.api.post(where, body, wait=wait)
            except CliError as error:
                self._leave_if_expired(error)
            else:
                return _records(answer)
        return []

    def settle(self, records: list[Json]) -> None:
        if self._member is None:
            return
        offsets = {str(record["partition"]): record["offset"] + 1 for record in records}
        where = f"{self._base}/{self._member}/commit"
        try:
            self._session.api.post(where, {"offsets": offsets})
        except CliError as error:
            self._leave_if_expired(error)

    def close(self) -> None:
        """Leave now, so that other members need not wait until the session expires."""
        if self._member is not None:
            with contextlib.suppress(CliError):
                self._session.api.delete(f"{self._base}/{self._member}")

    def _joined(self) -> str:
        if self._member is None:
            with suggesting(self._session, self._name):
                answer = self._session.api.post(self._base, {"start": self._start}, what=self._what)
            self._member = str(answer["member"])
        return self._member

    def _leave_if_expired(self, error: CliError) -> None:
        if error.code is not ExitCode.NOT_FOUND:
            raise error
        self._member = None


class PartitionReader:
    """Reads partitions from given offsets and keeps its positions locally.

    Several partitions are polled in turn; if none has records, the wait is spent on one partition
    at a time and is kept short, so that no partition is neglected for long.
    """

    def __init__(self, session: Session, name: str, positions: dict[int, int]) -> None:
        self._session = session
        self._where = path("logs", session.vhost, name, "records")
        self._what = log_named(session, name)
        self._positions = positions
        self._next = 0

    def fetch(self, count: int, wait: float) -> list[Json]:
        partitions = list(self._positions)
        if len(partitions) == 1:
            return self._poll(partitions[0], count, wait)
        for partition in partitions:
            if records := self._poll(partition, count, 0.0):
                return records
        self._next = (self._next + 1) % len(partitions)
        return self._poll(partitions[self._next], count, min(wait, _SHORT_WAIT))

    def settle(self, records: list[Json]) -> None:
        for record in records:
            self._positions[record["partition"]] = record["offset"] + 1

    def close(self) -> None:
        """Do nothing: the server does not know this reader."""

    def _poll(self, partition: int, count: int, wait: float) -> list[Json]:
        query = {"partition": partition, "offset": self._positions[partition], "count": count}
        answer = self._session.api.poll(self._where, what=self._what, wait=wait, **query)
        return _records(answer)


def _records(answer: Json) -> list[Json]:
    records: list[Json] = answer.get("records", []) if isinstance(answer, dict) else answer
    return records or []


def _start_offsets(
    session: Session, name: str, partition: int | None, start: str
) -> dict[int, int]:
    """Return the start offset of each partition, from the log's first and next offsets."""
    with suggesting(session, name):
        log = session.api.get(path("logs", session.vhost, name), what=log_named(session, name))
    parts = {part["index"]: part for part in log["partitions"]}
    if partition is not None and partition not in parts:
        text = (
            f"log '{name}' has no partition {partition}; its partitions are 0 to {len(parts) - 1}."
        )
        raise CliError(text, ExitCode.NOT_FOUND)
    chosen = parts if partition is None else {partition: parts[partition]}
    where = path("logs", session.vhost, name, "records")

    def resolve(part: Json) -> int:
        """Let the server resolve a time or an age."""
        answer = session.api.get(where, partition=part["index"], offset=start, count=1)
        records = _records(answer)
        return int(records[0]["offset"] if records else part["next_offset"])

    return {index: _start_offset(part, start, resolve) for index, part in chosen.items()}


def _start_offset(part: Json, start: str, resolve: Callable[[Json], int]) -> int:
    first, following = int(part["first_offset"]), int(part["next_offset"])
    named = {"first": first, "next": following, "last": max(first, following - 1)}
    if start in named:
        return named[start]
    if start.isdecimal():
        return min(max(int(start), first), following)
    return resolve(part)


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """What to print of a record besides its value."""

    has_key: bool
    has_offset: bool
    separator: str


FromBeginning = Annotated[bool, typer.Option("--from-beginning", help="Start at the first record.")]
Offset = Annotated[
    str | None,
    typer.Option(
        help="first, last, next, a number, a time or 1h (ago); for a group only if it is new.",
        show_default="next; first for a group",
    ),
]
Partition = Annotated[
    int | None, typer.Option(min=0, help="Read only this partition.", show_default="all")
]
Group = Annotated[
    str | None, typer.Option("--group", "-g", help="Join this group and continue where it stopped.")
]
Count = Annotated[
    int | None, typer.Option("--count", "-c", min=1, help="Stop after this many records.")
]
Idle = Annotated[
    float | None, typer.Option(min=0, help="Stop after this many seconds without a record.")
]
PrintKey = Annotated[bool, typer.Option("--print-key", help="Also print the key.")]
PrintOffset = Annotated[
    bool, typer.Option("--print-offset", help="Also print partition and offset.")
]
Separator = Annotated[
    str, typer.Option(help="Separator between printed fields.", show_default="a tab")
]


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Where a consumer starts to read."""

    from_beginning: bool
    offset: str | None
    partition: int | None
    group: str | None


def _reader(session: Session, name: str, place: StartOptions) -> Reader:
    if place.from_beginning and place.offset is not None:
        raise CliError("use either --from-beginning or --offset, not both.", ExitCode.USAGE)
    begin = "next" if place.group is None else "first"
    start = "first" if place.from_beginning else place.offset or begin
    if place.group is None:
        return PartitionReader(session, name, _start_offsets(session, name, place.partition, start))
    if place.partition is not None:
        text = "the members of a group share all partitions; omit --partition."
        raise CliError(text, ExitCode.USAGE)
    return GroupReader(session, name, place.group, start)


@command
def consume(
    session: Session,
    name: LogName,
    from_beginning: FromBeginning = False,
    offset: Offset = None,
    partition: Partition = None,
    group: Group = None,
    count: Count = None,
    idle: Idle = None,
    print_key: PrintKey = False,
    print_offset: PrintOffset = False,
    separator: Separator = "\t",
) -> None:
    """Print records as they arrive, until interrupted; reading does not remove records."""
    options = PrintOptions(print_key, print_offset, separator)
    reader = _reader(session, name, StartOptions(from_beginning, offset, partition, group))
    if session.out.formatter is Formatter.CSV and session.out.has_headers:
        write_csv(_CSV_COLUMNS)
    consumed = 0
    try:
        for records in _follow(reader, count, idle):
            for record in records:
                _print(session, record, options)
            sys.stdout.flush()
            reader.settle(records)
            consumed += len(records)
    except KeyboardInterrupt:
        pass
    finally:
        reader.close()
    session.out.remark(f"{counted(consumed, 'record')} consumed.")


def _follow(reader: Reader, count: int | None, idle: float | None) -> Iterator[list[Json]]:
    """Yield batches until there were `count` records, or none for `idle` seconds."""
    total, last = 0, time.monotonic()
    while count is None or total < count:
        left = MAX_WAIT_SECONDS if idle is None else idle - (time.monotonic() - last)
        limit = _BATCH if count is None else min(_BATCH, count - total)
        records = reader.fetch(limit, max(0.0, min(left, MAX_WAIT_SECONDS)))
        if records:
            yield records
            total, last = total + len(records), time.monotonic()
        elif idle is not None and time.monotonic() - last >= idle:
            return


def _print(session: Session, record: Json, options: PrintOptions) -> None:
    if session.out.formatter is Formatter.JSON:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    elif session.out.formatter is Formatter.CSV:
        write_csv([record.get(key) for key in _CSV_COLUMNS])
    else:
        content = decoded(record.get("value"), record.get("encoding"))
        fields = [f"{record['partition']}:{record['offset']}"] if options.has_offset else []
        fields += [record.get("key") or ""] if options.has_key else []
        prefix = "".join(field + options.separator for field in fields)
        sys.stdout.flush()
        sys.stdout.buffer.write(prefix.encode() + content + b"\n")
