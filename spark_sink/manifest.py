"""`manifest.json` of an export: what is there, and how it came there.

It is replaced as a whole (written aside, then renamed), after each batch became visible and
before Spark commits that batch. So after a crash it may name a batch that Spark runs again, and
such a batch is recognised by its range. Counts are of the rows written; `source_rows` is what the
source itself counts in the same range, by other means.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spark_sink.errors import SourceError
from spark_sink.selection import Selection

FILE_NAME = "manifest.json"
VERSION = 3


@dataclass(frozen=True, slots=True)
class Batch:
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
    batches: dict[int, Batch] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    long_names: dict[str, str] = field(default_factory=dict)

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
        """How far the table goes: the next id per key."""
        ends: dict[str, int] = {}
        for batch in self.batches.values():
            for key, end in batch.end.items():
                ends[key] = max(end, ends.get(key, 0))
        return ends

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "source_rows": self.source_rows,
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
    """The whole file. `swap` is set while finished tables are moved into their place."""

    identity: str = ""
    tables: dict[str, TableState] = field(default_factory=dict)
    swap: dict[str, int] = field(default_factory=dict)

    def save(self, directory: Path) -> None:
        tables = {name: state.to_json() for name, state in sorted(self.tables.items())}
        text = json.dumps(
            {"version": VERSION, "identity": self.identity, "swap": self.swap, "tables": tables},
            indent=2,
        )
        aside = directory / f".{FILE_NAME}.tmp"
        with aside.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, directory / FILE_NAME)


def load_manifest(directory: Path) -> Manifest | None:
    """None when there is no export yet."""
    path = directory / FILE_NAME
    try:
        read = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SourceError(f"Cannot read {path} ({error}): export to another directory.") from error
    if read.get("version") != VERSION:
        raise SourceError(f"{path} is of another version: export to another directory.")
    return Manifest(
        identity=read["identity"],
        tables={name: _table(state) for name, state in read["tables"].items()},
        swap=read["swap"],
    )


def _table(read: dict[str, Any]) -> TableState:
    return TableState(
        format=read["format"],
        selection=read["selection"],
        generation=read["generation"],
        complete=read["complete"],
        batches={batch["id"]: Batch(**batch) for batch in read["batches"]},
        groups=read["groups"],
        long_names=read["long_names"],
    )


def selection_json(selection: Selection) -> dict[str, Any]:
    """As it reads back from JSON, so that two of them can be compared."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(selection)))
    return plain
