"""Progress of an export (rows, bytes, rate): a bar on a terminal, else a line per batch."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from leveret.model.quantities import approximate_size


class Meter:
    """One table's progress; `advance` is called after each batch."""

    def __init__(self, name: str, console: Console) -> None:
        self.rows = self.bytes = 0
        self._name = name
        self._console = console
        self._started = monotonic()
        self._progress = Progress(
            TextColumn("{task.description:10}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} rows"),
            TextColumn("{task.fields[size]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(name, total=0, size="0 B", rate="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def total(self, rows: int) -> None:
        self._progress.update(self._task, total=rows)

    def advance(self, rows: int, size: int) -> None:
        self.rows += rows
        self.bytes += size
        rate = f"{self.rows / max(monotonic() - self._started, 1e-6):,.0f} rows/s"
        self._progress.update(
            self._task, completed=self.rows, size=approximate_size(self.bytes), rate=rate
        )
        if not self._console.is_terminal:
            line = f"{self._name}: {self.rows:,} rows, {approximate_size(self.bytes)}, {rate}"
            self._console.print(line, markup=False, highlight=False)
