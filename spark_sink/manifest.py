"""`manifest.json` of an export: its tables, batches and counts.

The file is replaced atomically (written to a temporary file, then renamed), after a batch became
visible and before Spark commits that batch. So after a crash it may contain a batch that Spark runs
again; such a batch is recognised by its range. `rows` counts the rows written; `source_rows` is
what the source itself counts in the same range, independently.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leveret.spark_sink.arrow.selection import Selection
from leveret.spark_sink.errors import SourceError

FILE_NAME = "manifest.json"
VERSION = 3


@dataclass(frozen=True, slots=True)
class ExportedBatch:
    """One directory `batch=<id>`: rows with ids in [start, end), per key of the stream."""

    id: int
    start: dict[str, int]
    end: dict[str, int]
    rows: int
    source_rows: int
    files: int
    bytes: int


@dataclass(slots=True)
class TableState:
    """One exported table. `generation` grows when a full export replaces an earlier one."""

    format: str
    selection: dict[str, Any]
    generation: int = 1
    complete: bool = False
    batches: dict[int, ExportedBatch] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    long_names: dict[str, str] = field(default_factory=dict)
    lost: int = 0
    """An upper bound of the rows that were deleted before they were exported."""

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches.values())

    @property
    def source_rows(self) -> int:
        return sum(batch.source_rows for batch in self.batches.values())

    @property
    def bytes(self) -> int:
        return sum(batch.bytes for batch in self.batches.values())

    @property
    def reached(self) -> dict[str, int]:
        """The next id to export, per key."""
        ends: dict[str, int] = {}
        for batch in self.batches.values():
            for key, end in batch.end.items():
                ends[key] = max(end, ends.get(key, 0))
        return ends

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "source_rows": self.source_rows,
            "lost": self.lost,
            "bytes": self.bytes,
            "format": self.format,
            "complete": self.complete,
            "generation": self.generation,
            "selection": self.selection,
            "groups": self.groups,
            "long_names": self.long_names,
            "batches": [asdict(self.batches[key]) for key in sorted(self.batches)],
        }


@dataclass(slots=True)
class Manifest:
    """The whole file. `swap` is set while finished tables are moved into place."""

    identity: str = ""
    tables: dict[str, TableState] = field(default_factory=dict)
    swap: dict[str, int] = field(default_factory=dict)

    def save(self, directory: Path) -> None:
        tables = {name: state.to_json() for name, state in sorted(self.tables.items())}
        text = json.dumps(
            {"version": VERSION, "identity": self.identity, "swap": self.swap, "tables": tables},
            indent=2,
        )
        temporary = directory / f".{FILE_NAME}.tmp"
        with temporary.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, directory / FILE_NAME)


def load_manifest(directory: Path) -> Manifest | None:
    """None if there is no export yet."""
    path = directory / FILE_NAME
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SourceError(f"Cannot read {path} ({error}): export to another directory.") from error
    if content.get("version") != VERSION:
        raise SourceError(
            f"{path} has a version other than {VERSION}: export to another directory."
        )
    return Manifest(
        identity=content["identity"],
        tables={name: _table(table) for name, table in content["tables"].items()},
        swap=content["swap"],
    )


def _table(state: dict[str, Any]) -> TableState:
    return TableState(
        format=state["format"],
        selection=state["selection"],
        generation=state["generation"],
        complete=state["complete"],
        batches={batch["id"]: ExportedBatch(**batch) for batch in state["batches"]},
        groups=state["groups"],
        long_names=state["long_names"],
        lost=state.get("lost", 0),
    )


def selection_json(selection: Selection) -> dict[str, Any]:
    """The selection as JSON values, so that it can be compared with one in a manifest."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(selection)))
    return plain
