"""The directory an export writes to, and how output becomes visible.

    DIR/manifest.json                     what is there
    DIR/<table>/batch=<id>/…              finished batches; nothing else is ever in here
    DIR/.tmp/<table>/…                    a batch being written
    DIR/.staging/<generation>/<table>/…   a full export that will replace an earlier one
    DIR/.checkpoints/<generation>/<table> Spark's own memory of the stream

Invariant: a batch appears by one rename, whole. A full export over a finished one is made in
`.staging`; when it is done, `swap` is written to the manifest and the tables are renamed into
place; a crash in between is finished at the next start. Names that begin with a dot are invisible
to Spark and to pyarrow alike. One export at a time works on a directory (a lock file says so).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_sink.errors import SourceError
from spark_sink.manifest import Batch, Manifest, TableState, load_manifest

_BATCH_FILE = "_batch.json"


class Target:
    """The output directory of one run."""

    def __init__(self, directory: Path, identity: str) -> None:
        self.directory = directory
        self.manifest = load_manifest(directory) or Manifest(identity)
        known = self.manifest.identity = self.manifest.identity or identity
        if identity and known != identity:
            raise SourceError(
                f"{directory} holds an export of another broker: export to another directory."
            )
        self._finish_swap()
        shutil.rmtree(directory / ".tmp", ignore_errors=True)

    def __repr__(self) -> str:
        return f"<Target {self.directory} {sorted(self.manifest.tables)}>"

    def begin(self, table: str, wanted: TableState, incremental: bool) -> TableTarget:
        """Where to write a table: on from where an earlier run stopped, or all over again."""
        state = self.manifest.tables.get(table)
        if state is None:
            return TableTarget(self, table, wanted, staged=False)
        if (state.format, state.selection) != (wanted.format, wanted.selection):
            raise SourceError(
                f"{self.directory / table} was exported as {state.format} with other conditions: "
                "repeat them, or export to another directory."
            )
        if incremental or not state.complete:
            remembered = self.checkpoint(table, state.generation).exists()
            if state.reached and not remembered:
                raise SourceError(
                    f"The checkpoint of {self.directory / table} is gone, so nobody knows where "
                    "to go on: export to another directory."
                )
            return TableTarget(self, table, state, staged=False)
        wanted.generation = state.generation + 1
        for leftover in (self._staging(wanted.generation, table),
                         self.checkpoint(table, wanted.generation)):  # fmt: skip
            shutil.rmtree(leftover, ignore_errors=True)
        return TableTarget(self, table, wanted, staged=True)

    def replace(self, finished: list[TableTarget]) -> None:
        """Put staged tables in the place of their predecessors, all or none."""
        if not finished:
            return
        for one in finished:
            self.manifest.swap[one.table] = one.state.generation
            self.manifest.tables[one.table] = one.state
        self.manifest.save(self.directory)
        self._finish_swap()

    def checkpoint(self, table: str, generation: int) -> Path:
        return self.directory / ".checkpoints" / str(generation) / table

    def _staging(self, generation: int, table: str) -> Path:
        return self.directory / ".staging" / str(generation) / table

    def _finish_swap(self) -> None:
        if not self.manifest.swap:
            return
        for table, generation in self.manifest.swap.items():
            new, place = self._staging(generation, table), self.directory / table
            old = self.directory / ".tmp" / f"old-{generation}-{table}"
            if new.exists():
                old.parent.mkdir(exist_ok=True)
                if place.exists():
                    os.replace(place, old)
                os.replace(new, place)
            shutil.rmtree(old, ignore_errors=True)
            shutil.rmtree(self.checkpoint(table, generation - 1), ignore_errors=True)
        self.manifest.swap = {}
        self.manifest.save(self.directory)
        shutil.rmtree(self.directory / ".staging", ignore_errors=True)


class TableTarget:
    """Where one table of one run is written."""

    def __init__(self, target: Target, table: str, state: TableState, staged: bool) -> None:
        self.table = table
        self.state = state
        self.staged = staged
        self._target = target
        self.root = target._staging(state.generation, table) if staged else (
            target.directory / table
        )  # fmt: skip
        self.checkpoint = target.checkpoint(table, state.generation)

    def temporary(self, batch_id: int) -> Path:
        """A fresh directory to write a batch to."""
        path = self._target.directory / ".tmp" / self.table / f"batch={batch_id}"
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def span(self, batch_id: int) -> tuple[dict[str, int], dict[str, int]]:
        """The offsets Spark has planned for a batch: from its write-ahead log."""
        start = _offsets(self.checkpoint, batch_id - 1)
        return start, _offsets(self.checkpoint, batch_id)

    def maybe_finished(
        self, batch_id: int, span: tuple[dict[str, int], dict[str, int]]
    ) -> Batch | None:
        """The batch if it is visible already, of the same range: then it is not written again."""
        try:
            batch = Batch(**self._read(batch_id)["batch"])
        except (OSError, ValueError):
            return None
        return batch if (batch.start, batch.end) == span else None

    def publish(self, temporary: Path, batch: Batch, groups: list[dict[str, Any]]) -> None:
        """Make a written batch visible by one rename, in place of one with the same id."""
        described = {"batch": asdict(batch), "groups": groups}
        (temporary / _BATCH_FILE).write_text(json.dumps(described))
        place = self._place(batch.id)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            aside = temporary.with_name(f"replaced-{batch.id}")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(place, aside)
            os.replace(temporary, place)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            os.replace(temporary, place)

    def record(self, batch: Batch) -> None:
        """Enter a visible batch into the manifest."""
        self.state.batches[batch.id] = batch
        if not self.staged:
            self._target.manifest.tables[self.table] = self.state
            self._target.manifest.save(self._target.directory)

    def finish(self, complete: bool) -> None:
        self.state.complete = complete
        self.root.mkdir(parents=True, exist_ok=True)
        if not self.staged:
            self._target.manifest.tables[self.table] = self.state
            self._target.manifest.save(self._target.directory)

    def groups(self, batch_id: int) -> list[dict[str, Any]]:
        """The source's counts by queue and event (or by partition) of a visible batch."""
        groups: list[dict[str, Any]] = self._read(batch_id)["groups"]
        return groups

    def _read(self, batch_id: int) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self._place(batch_id) / _BATCH_FILE).read_text())
        return read

    def _place(self, batch_id: int) -> Path:
        return self.root / f"batch={batch_id}"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Refuse a second export into the same directory at the same time."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / ".lock").open("w")
    except OSError as error:
        raise SourceError(
            f"Cannot write to {directory} ({error.strerror}): choose a directory you may write to."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SourceError(
                f"Another export is writing to {directory}: wait for it, or choose another one."
            ) from None
        yield


def written_files(directory: Path) -> tuple[int, int]:
    """Number and bytes of the data files under a directory."""
    sizes = [
        path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith((".", "_"))
    ]
    return len(sizes), sum(sizes)


def _offsets(checkpoint: Path, batch_id: int) -> dict[str, int]:
    """The end offset of a batch in Spark's log: a version line, metadata, then the source's."""
    if batch_id < 0:
        return {}
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    return {key: int(value) for key, value in json.loads(lines[2]).items()}
