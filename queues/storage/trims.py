"""What retention has deleted, for readers that continue from a position in a table.

Deletions are numbered. A reader stores its position, the next id to read, and the number of the
last deletion at that time. Later it asks for the highest id deleted since: if that is not below its
position, rows were deleted that it has not read. The highest id deleted at any time would not do,
because a message that was live at first may be deleted long after younger ones.

Stored as JSON in the table `meta`, in the transaction that deletes the rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

MAX_MARKS = 32
MESSAGES_KEY = "trimmed_messages"
EVENTS_KEY = "trimmed_events"


@dataclass(frozen=True, slots=True)
class Trims:
    """`number` is that of the last deletion; 0 if there was none.

    `marks` are pairs of a deletion's number and the highest id it deleted. A mark that a later
    deletion exceeds is dropped, so numbers ascend and ids descend, and usually there is one mark.
    """

    number: int = 0
    marks: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_json(cls, text: str | bytes | None) -> Trims:
        return cls.from_values(json.loads(text)) if text else cls()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Trims:
        """From decoded JSON."""
        return cls(values["number"], tuple((number, last) for number, last in values["marks"]))

    def to_json(self) -> str:
        return json.dumps({"number": self.number, "marks": self.marks})

    def after_deleting(self, last_id: int) -> Trims:
        """The trims after a deletion of rows of which `last_id` is the highest."""
        number = self.number + 1
        higher = tuple(takewhile(lambda mark: mark[1] > last_id, self.marks))
        marks = (*higher, (number, last_id))
        if len(marks) > MAX_MARKS:
            # Join the two oldest: a reader from between them is told of the higher id, too.
            marks = ((marks[1][0], marks[0][1]), *marks[2:])
        return Trims(number, marks)

    def last_deleted_since(self, number: int) -> int | None:
        """The highest id deleted after the deletion with this number; None if none was."""
        return next((last for at, last in self.marks if at > number), None)
