"""Where a stream continues: what Spark keeps as JSON in the offsets of a checkpoint.

    {"next": 1000, "broker": "id=…", "trims": 3}      messages, events
    {"7": 20, "8": 35, "broker": "id=…"}              logs, by queue id

`broker` is the identity of the data directory, and `trims` the number of the last deletion by
retention when the position was chosen (`leveret.queues.storage.trims`). Checkpoints of older
versions have neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leveret.spark_sink.arrow.source import Ranges

Offset = dict[str, Any]
_BROKER, _TRIMS = "broker", "trims"


@dataclass(frozen=True, slots=True)
class Position:
    """The next id to read, by key (see `Ranges.of`)."""

    next_ids: Mapping[str, int] = field(default_factory=dict)
    broker: str = ""
    trims: int = 0

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any]) -> Position:
        return cls(
            {key: int(value) for key, value in offset.items() if key not in (_BROKER, _TRIMS)},
            str(offset.get(_BROKER, "")),
            int(offset.get(_TRIMS, 0)),
        )

    @classmethod
    def at(cls, next_ids: Mapping[str, int], table: str, ranges: Ranges) -> Position:
        """This position in a table whose ranges are now these."""
        return cls(next_ids, ranges.identity, ranges.trims_of(table).number)

    def to_offset(self) -> Offset:
        """With sorted keys: Spark compares the JSON to see whether there is anything new."""
        offset: Offset = {key: self.next_ids[key] for key in sorted(self.next_ids)}
        if self.broker:
            offset[_BROKER] = self.broker
        if self.trims:
            offset[_TRIMS] = self.trims
        return offset
