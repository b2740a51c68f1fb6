"""The directory an export writes to, and how output becomes visible.

    DIR/manifest.json                     tables, batches and counts
    DIR/<table>/batch=<id>/…              finished batches, nothing else
    DIR/.tmp/<table>/…                    a batch being written
    DIR/.staging/<generation>/<table>/…   a full export that will replace an earlier one
    DIR/.checkpoints/<generation>/<table> Spark's checkpoint of the stream

Invariant: a batch becomes visible as a whole, by one rename. A full export over a finished one is
written to `.staging`; when it is complete, `swap` is written to the manifest and the tables are
renamed into place; after a crash in between, the next start completes the renames. Spark and
pyarrow ignore names that begin with a dot. A lock file lets one export at a time use a directory.
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

from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.manifest import ExportedBatch, Manifest, TableState, load_manifest
from leveret.spark_sink.positions import Position

_BATCH_FILE = "_batch.json"


class ExportTarget:
    """The output directory of one run."""

    def __init__(self, directory: Path, identity: str) -> None:
        self.directory = directory
        self.manifest = load_manifest(directory) or Manifest(identity)
        exported = self.manifest.identity = self.manifest.identity or identity
        if identity and exported != identity:
            raise SourceError(
                f"{directory} holds an export of another broker: export to another directory."
            )
        self._finish_swap()
        shutil.rmtree(directory / ".tmp", ignore_errors=True)

    def __repr__(self) -> str:
        return f"<ExportTarget {self.directory} {sorted(self.manifest.tables)}>"

    def begin(self, table: str, new_state: TableState, incremental: bool) -> TableTarget:
        """Where to write a table: continue an earlier run, or start a full export."""
        state = self.manifest.tables.get(table)
        if state is None:
            return TableTarget(self, table, new_state, staged=False)
        if (state.format, state.selection) != (new_state.format, new_state.selection):
            raise SourceError(
                f"{self.directory / table} was exported as {state.format} with other conditions: "
                "use the same ones, or export to another directory."
            )
        if incremental or not state.complete:
            has_checkpoint = self.checkpoint(table, state.generation).exists()
            if state.reached and not has_checkpoint:
                raise SourceError(
                    f"The checkpoint of {self.directory / table} is missing, so the export cannot "
                    "continue: export to another directory."
                )
            return TableTarget(self, table, state, staged=False)
        new_state.generation = state.generation + 1
        for leftover in (self._staging(new_state.generation, table),
                         self.checkpoint(table, new_state.generation)):  # fmt: skip
            shutil.rmtree(leftover, ignore_errors=True)
        return TableTarget(self, table, new_state, staged=True)

    def replace(self, finished: list[TableTarget]) -> None:
        """Replace the earlier exports of these tables by the staged ones, all or none."""
        if not finished:
            return
        for staged in finished:
            self.manifest.swap[staged.table] = staged.state.generation
            self.manifest.tables[staged.table] = staged.state
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
            new, final = self._staging(generation, table), self.directory / table
            old = self.directory / ".tmp" / f"old-{generation}-{table}"
            if new.exists():
                old.parent.mkdir(exist_ok=True)
                if final.exists():
                    os.replace(final, old)
                os.replace(new, final)
            shutil.rmtree(old, ignore_errors=True)
            shutil.rmtree(self.checkpoint(table, generation - 1), ignore_errors=True)
        self.manifest.swap = {}
        self.manifest.save(self.directory)
        shutil.rmtree(self.directory / ".staging", ignore_errors=True)


class TableTarget:
    """Where one table of one run is written."""

    def __init__(self, target: ExportTarget, table: str, state: TableState, staged: bool) -> None:
        self.table = table
        self.state = state
        self.staged = staged
        self._target = target
        self.root = target._staging(state.generation, table) if staged else (
            target.directory / table
        )  # fmt: skip
        self.checkpoint = target.checkpoint(table, state.generation)

    def temporary(self, batch_id: int) -> Path:
        """A directory that does not exist yet, to write a batch to."""
        path = self._target.directory / ".tmp" / self.table / f"batch={batch_id}"
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def span(self, batch_id: int) -> tuple[dict[str, int], dict[str, int]]:
        """The start and end offsets of a batch, from Spark's offset log."""
        start, end = (self._position(number) for number in (batch_id - 1, batch_id))
        return dict(start.next_ids), dict(end.next_ids)

    def maybe_position(self) -> Position | None:
        """Where the next batch starts; None if no batch is committed."""
        commits = self.checkpoint / "commits"
        names = [path.name for path in commits.iterdir()] if commits.is_dir() else []
        committed = [int(name) for name in names if name.isdecimal()]
        return self._position(max(committed)) if committed else None

    def restart(self) -> None:
        """Forget the position, so that the export begins again; no batch may be visible."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)

    def _position(self, batch_id: int) -> Position:
        """The end of a batch. Spark writes three lines: version, metadata, source offset."""
        if batch_id < 0:
            return Position()
        lines = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        return Position.from_offset(json.loads(lines[2]))

    def maybe_finished(
        self, batch_id: int, span: tuple[dict[str, int], dict[str, int]]
    ) -> ExportedBatch | None:
        """The batch if it is already visible with the same range; it need not be written again."""
        try:
            batch = ExportedBatch(**self._read(batch_id)["batch"])
        except (OSError, ValueError):
            return None
        return batch if (batch.start, batch.end) == span else None

    def publish(self, temporary: Path, batch: ExportedBatch, groups: list[dict[str, Any]]) -> None:
        """Make a written batch visible by one rename, replacing one with the same id."""
        content = {"batch": asdict(batch), "groups": groups}
        (temporary / _BATCH_FILE).write_text(json.dumps(content))
        final = self._batch_directory(batch.id)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            replaced = temporary.with_name(f"replaced-{batch.id}")
            shutil.rmtree(replaced, ignore_errors=True)
            os.replace(final, replaced)
            os.replace(temporary, final)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            os.replace(temporary, final)

    def record(self, batch: ExportedBatch) -> None:
        """Record a visible batch in the manifest."""
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
        content: dict[str, Any] = json.loads(
            (self._batch_directory(batch_id) / _BATCH_FILE).read_text()
        )
        return content

    def _batch_directory(self, batch_id: int) -> Path:
        return self.root / f"batch={batch_id}"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Allow one export at a time into a directory."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / ".lock").open("w")
    except OSError as error:
        raise SourceError(
            f"Cannot write to {directory} ({error.strerror}): choose a writable directory."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SourceError(
                f"Another export is writing to {directory}: wait for it, or export elsewhere."
            ) from None
        yield


def written_files(directory: Path) -> tuple[int, int]:
    """Number and total size of the data files under a directory."""
    sizes = [
        path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith((".", "_"))
    ]
    return len(sizes), sum(sizes)
