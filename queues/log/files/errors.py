"""Errors of a log: invalid arguments, failed disks, damaged batches.

Damage is a value, not an exception: a damaged batch is reported and skipped, and everything around
it stays readable.
"""

from dataclasses import dataclass


class LogError(Exception):
    """An operation of the log failed."""


class LogFailed(LogError):
    """The log refuses writes because an earlier write or sync failed."""


class SpecError(ValueError):
    """An argument of a consumer or a queue is invalid."""


MISSING_SEGMENT = "missing segment"
CUT_SEGMENT = "the segment is cut short"
MISSING_END = "missing at the end"
TRUNCATED = "truncated: the log is shorter than recorded"
"""Reasons of damage that concerns whole files; the others concern bytes of a segment."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment without a valid batch, and the offsets lost with them.

    `next_offset` is None if no valid batch is known to follow in the segment. `length` is 0 if the
    bytes are missing.
    """

    segment: int
    position: int
    length: int
    first_offset: int
    next_offset: int | None
    reason: str
