"""Results on standard output, remarks on standard error.

Invariant: standard output carries only the result, in the chosen format; progress, remarks and
errors go to standard error, so that any command can be used in a pipe.

`table` is drawn for a terminal and tab-separated (as rabbitmqctl prints it) for a pipe;
`pretty_table` is always drawn; `json` keeps the server's types; `csv` is RFC 4180.

Nothing is truncated, since what is shown may no longer be on the server: a cell too long for the
terminal is wrapped, and rows with too many columns are printed field by field.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from leveret.cli.api import Json

T = TypeVar("T")
Justify = Literal["left", "right"]

_FRAME = 3
"""Characters per column for its border and padding."""
_MIN_WIDTH = 20
"""Wider columns may be wrapped to this width, but not to less."""


def counted(number: int, noun: str) -> str:
    """Return `1 record` or `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class Formatter(StrEnum):
    TABLE = "table"
    PRETTY_TABLE = "pretty_table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Output:
    """The output options of a command."""

    formatter: Formatter = Formatter.TABLE
    is_quiet: bool = False
    has_headers: bool = True

    @property
    def is_machine_readable(self) -> bool:
        return self.formatter in {Formatter.JSON, Formatter.CSV}

    def remark(self, text: str) -> None:
        """Write a sentence to standard error, except with -q and in machine-readable formats."""
        if not self.is_quiet and not self.is_machine_readable:
            sys.stderr.write(f"{text}\n")

    def warn(self, text: str) -> None:
        sys.stderr.write(f"leveret: {text}\n")

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Json]]) -> None:
        """Print a list of objects."""
        if self.formatter is Formatter.JSON:
            write_json([dict(zip(columns, row, strict=True)) for row in rows])
        elif self.formatter is Formatter.CSV:
            self._csv(columns, rows)
        elif self.formatter is Formatter.PRETTY_TABLE or sys.stdout.isatty():
            self._drawn(columns, rows)
        else:
            self._tabs(columns, rows)

    def record(self, title: str, values: Mapping[str, Json]) -> None:
        """Print one object, a line for each field."""
        if self.formatter is Formatter.JSON:
            write_json(dict(values))
        else:
            self.remark(title)
            self.rows(("key", "value"), values.items())

    def track(self, items: Sequence[T], description: str) -> Iterator[T]:
        """Yield the items and show a progress bar on a terminal."""
        with self.progress() as progress:
            yield from progress.track(items, description=description)

    def progress(self, *, is_typed: bool = False) -> Progress:
        """Return a progress bar, which is disabled while a person types the input."""
        console = Console(stderr=True)
        is_disabled = self.is_quiet or is_typed or not console.is_terminal
        if is_disabled:  # Rich before version 15 would print an empty line all the same
            console = Console(stderr=True, quiet=True)
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=is_disabled,
        )

    def _csv(self, columns: Sequence[str], rows: Iterable[Sequence[Json]]) -> None:
        if self.has_headers:
            write_csv(columns)
        for row in rows:
            write_csv(row)

    def _tabs(self, columns: Sequence[str], rows: Iterable[Sequence[Json]]) -> None:
        if self.has_headers:
            sys.stdout.write("\t".join(columns) + "\n")
        for row in rows:
            sys.stdout.write("\t".join(_one_line(cell(value)) for value in row) + "\n")

    def _drawn(self, columns: Sequence[str], rows: Iterable[Sequence[Json]]) -> None:
        content = list(rows)
        texts = [[_one_line(cell(value)) for value in row] for row in content]
        # Outside a terminal the table is as wide as necessary.
        console = Console() if sys.stdout.isatty() else Console(width=10_000)
        widths = [max(map(cell_len, column)) for column in zip(columns, *texts, strict=True)]
        needed = [min(width, _MIN_WIDTH) for width in widths]
        if sum(needed) + _FRAME * len(columns) + 1 > console.width:
            _write_fields(columns, texts)
            return
        table = Table(show_header=self.has_headers, header_style="bold")
        for index, name in enumerate(columns):
            is_number = content and all(type(row[index]) in {int, float} for row in content)
            justify: Justify = "right" if is_number else "left"
            table.add_column(name, justify=justify, overflow="fold", min_width=needed[index])
        for row in texts:
            table.add_row(*map(Text, row))
        console.print(table)


def _write_fields(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write each row as lines of name and value, with an empty line between rows."""
    width = max(map(len, columns))
    blocks = ("".join(_field_lines(columns, row, width)) for row in rows)
    sys.stdout.write("\n".join(blocks))


def _field_lines(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    for name, text in zip(columns, row, strict=True):
        yield f"{name:{width}}  {text}".rstrip() + "\n"


def write_json(value: Json) -> None:
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def write_csv(row: Sequence[Json]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerow([cell(value) for value in row])


def cell(value: Json) -> str:
    """Return a value as shown in a column: `true`, `[a, b]`, compact JSON for objects."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return f"[{', '.join(value)}]"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def _one_line(text: str) -> str:
    """Escape control characters: a name must not move the cursor or break a row."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
