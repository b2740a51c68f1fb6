"""`leveret log produce` and `leveret log consume`: records from standard input and to output.

A record's key and value travel as text where they are UTF-8, else as base64 (`encoding`). A group
member prints first and commits after: a crash in between prints records again, and skips none.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Protocol

import typer

from leveret.cli.api import LONGEST_WAIT, Json, decoded, encoded, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.inputs import line_batches, pairs
from leveret.cli.log_names import log_named, suggesting
from leveret.cli.output import Formatter, counted, write_csv
from leveret.cli.session import Session, client_command

commands = typer.Typer()
command = client_command(commands)

LogName = Annotated[str, typer.Argument(help="Name of the log.")]

_BATCH = 500
_SHORT_WAIT = 0.5
_CSV_COLUMNS = ("partition", "offset", "timestamp", "key", "value")


@command
def produce(
    session: Session,
    name: LogName,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", help="What stands between key and value in a line."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", min=0, help="Always this one.", show_default="by key"),
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="A header.")
    ] = None,
) -> None:
    """Append each line of standard input as a record; confirmed means on disk."""
    common: dict[str, Json] = {} if partition is None else {"partition": partition}
    common |= {"headers": pairs(headers, "header")} if headers else {}
    where, what, sent = path("logs", session.vhost, name, "publish"), log_named(session, name), 0
    is_typed = sys.stdin.isatty()
    if is_typed:
        session.out.remark("One record a line; end with Ctrl-D.")
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
        head, found, tail = line.partition(separator.encode())
        if not found:
            shown = line[:40].decode("utf-8", "replace")
            raise CliError(f"the line {shown!r} has no {separator!r} after its key.")
        key, value = head, tail
    text, encoding = encoded(value)
    record: dict[str, Json] = {**common, "value": text}
    if encoding == "base64":
        record["encoding"] = "base64"
    if key is not None:
        record["key"] = key.decode("utf-8", "replace")
    return record


class Reader(Protocol):
    """A place in a log that moves on."""

    def fetch(self, most: int, wait: float) -> list[Json]:
        """The next records, waiting for the first one up to `wait` seconds."""

    def settle(self, records: list[Json]) -> None:
        """These records have been printed."""

    def close(self) -> None:
        """Nothing more is wanted."""


class GroupReader:
    """A member of a group: reads its share of the partitions, and commits what was printed.

    A member that was silent for too long, or whose broker was started anew, joins again.
    """

    def __init__(self, session: Session, name: str, group: str, start: int | str) -> None:
        self._session = session
        self._base = path("logs", session.vhost, name, "groups", group, "members")
        self._what = log_named(session, name)
        self._name = name
        self._start = start
        self._member: str | None = None

    def fetch(self, most: int, wait: float) -> list[Json]:
        body = {"count": most, "wait": wait}
        for _ in range(2):
            where = f"{self._base}/{self._joined()}/fetch"
            try:
                answer = self._session.api.post(where, body, wait=wait)
            except CliError as error:
                self._expired(error)
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
            self._expired(error)

    def close(self) -> None:
        """Leave at once, so that the others need not wait until the session ends."""
        if self._member is not None:
            with contextlib.suppress(CliError):
                self._session.api.delete(f"{self._base}/{self._member}")

    def _joined(self) -> str:
        if self._member is None:
            with suggesting(self._session, self._name):
                answer = self._session.api.post(self._base, {"start": self._start}, what=self._what)
            self._member = str(answer["member"])
        return self._member

    def _expired(self, error: CliError) -> None:
        if error.code is not ExitCode.NOT_FOUND:
            raise error
        self._member = None


class PartitionReader:
    """Reads partitions from chosen offsets and remembers, for itself alone, how far it is.

    Several partitions are asked in turn; when none has anything, the wait is spent on one of them
    at a time and kept short, so that none is overlooked for long.
    """

    def __init__(self, session: Session, name: str, positions: dict[int, int]) -> None:
        self._session = session
        self._where = path("logs", session.vhost, name, "records")
        self._what = log_named(session, name)
        self._positions = positions
        self._turn = 0

    def fetch(self, most: int, wait: float) -> list[Json]:
        partitions = list(self._positions)
        if len(partitions) == 1:
            return self._poll(partitions[0], most, wait)
        for partition in partitions:
            if found := self._poll(partition, most, 0.0):
                return found
        self._turn = (self._turn + 1) % len(partitions)
        return self._poll(partitions[self._turn], most, min(wait, _SHORT_WAIT))

    def settle(self, records: list[Json]) -> None:
        for record in records:
            self._positions[record["partition"]] = record["offset"] + 1

    def close(self) -> None:
        """Nobody knows of this reader."""

    def _poll(self, partition: int, most: int, wait: float) -> list[Json]:
        place = {"partition": partition, "offset": self._positions[partition], "count": most}
        answer = self._session.api.poll(self._where, what=self._what, wait=wait, **place)
        return _records(answer)


def _records(answer: Json) -> list[Json]:
    found: list[Json] = answer.get("records", []) if isinstance(answer, dict) else answer
    return found or []


def _starts(session: Session, name: str, partition: int | None, start: str) -> dict[int, int]:
    """Where to begin in each partition, from the log's own first and next offsets."""
    with suggesting(session, name):
        log = session.api.get(path("logs", session.vhost, name), what=log_named(session, name))
    parts = {part["index"]: part for part in log["partitions"]}
    if partition is not None and partition not in parts:
        text = f"log '{name}' has the partitions 0 to {len(parts) - 1}, not {partition}."
        raise CliError(text, ExitCode.NOT_FOUND)
    chosen = parts if partition is None else {partition: parts[partition]}
    where = path("logs", session.vhost, name, "records")

    def asked(part: Json) -> int:
        """A time or an age: the server knows."""
        answer = session.api.get(where, partition=part["index"], offset=start, count=1)
        found = _records(answer)
        return int(found[0]["offset"] if found else part["next_offset"])

    return {index: _start(part, start, asked) for index, part in chosen.items()}


def _start(part: Json, start: str, asked: Callable[[Json], int]) -> int:
    first, following = int(part["first_offset"]), int(part["next_offset"])
    named = {"first": first, "next": following, "last": max(first, following - 1)}
    if start in named:
        return named[start]
    if start.isdecimal():
        return min(max(int(start), first), following)
    return asked(part)


@dataclass(frozen=True, slots=True)
class Shape:
    """What to print of a record beside its value."""

    has_key: bool
    has_offset: bool
    separator: str


FromBeginning = Annotated[bool, typer.Option("--from-beginning", help="From the first record on.")]
Offset = Annotated[
    str | None,
    typer.Option(
        help="first, last, next, a number, a time or 1h (ago); for a new group.",
        show_default="next, for a group first",
    ),
]
Partition = Annotated[int | None, typer.Option(min=0, help="Only this one.", show_default="all")]
Group = Annotated[
    str | None, typer.Option("--group", "-g", help="Join this group: go on where it stopped.")
]
Count = Annotated[
    int | None, typer.Option("--count", "-c", min=1, help="Stop after so many records.")
]
Idle = Annotated[float | None, typer.Option(min=0, help="Stop after so many quiet seconds.")]
PrintKey = Annotated[bool, typer.Option("--print-key", help="Print the key, too.")]
PrintOffset = Annotated[
    bool, typer.Option("--print-offset", help="Print partition and offset, too.")
]
Separator = Annotated[str, typer.Option(help="Between what is printed.", show_default="a tab")]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a consumer wants to read."""

    from_beginning: bool
    offset: str | None
    partition: int | None
    group: str | None


def _reader(session: Session, name: str, place: Place) -> Reader:
    if place.from_beginning and place.offset is not None:
        raise CliError("give --from-beginning or --offset, not both.", ExitCode.USAGE)
    begin = "next" if place.group is None else "first"
    start = "first" if place.from_beginning else place.offset or begin
    if place.group is None:
        return PartitionReader(session, name, _starts(session, name, place.partition, start))
    if place.partition is not None:
        text = "--group shares all partitions with its other members; leave --partition out."
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
    """Print records as they come, until interrupted; reading takes nothing away."""
    shape = Shape(print_key, print_offset, separator)
    reader = _reader(session, name, Place(from_beginning, offset, partition, group))
    if session.out.formatter is Formatter.CSV and session.out.has_headers:
        write_csv(_CSV_COLUMNS)
    seen = 0
    try:
        for records in _follow(reader, count, idle):
            for record in records:
                _print(session, record, shape)
            sys.stdout.flush()
            reader.settle(records)
            seen += len(records)
    except KeyboardInterrupt:
        pass
    finally:
        reader.close()
    session.out.remark(f"{counted(seen, 'record')} consumed.")


def _follow(reader: Reader, count: int | None, idle: float | None) -> Iterator[list[Json]]:
    """Batches of records until `count` have come or `idle` seconds have brought none."""
    seen, last = 0, time.monotonic()
    while count is None or seen < count:
        left = LONGEST_WAIT if idle is None else idle - (time.monotonic() - last)
        most = _BATCH if count is None else min(_BATCH, count - seen)
        records = reader.fetch(most, max(0.0, min(left, LONGEST_WAIT)))
        if records:
            yield records
            seen, last = seen + len(records), time.monotonic()
        elif idle is not None and time.monotonic() - last >= idle:
            return


def _print(session: Session, record: Json, shape: Shape) -> None:
    if session.out.formatter is Formatter.JSON:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    elif session.out.formatter is Formatter.CSV:
        write_csv([record.get(key) for key in _CSV_COLUMNS])
    else:
        content = decoded(record.get("value"), record.get("encoding"))
        fields = [f"{record['partition']}:{record['offset']}"] if shape.has_offset else []
        fields += [record.get("key") or ""] if shape.has_key else []
        prefix = "".join(field + shape.separator for field in fields)
        sys.stdout.flush()
        sys.stdout.buffer.write(prefix.encode() + content + b"\n")
