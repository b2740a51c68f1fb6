"""What can go wrong in a log: refused settings, failed disks, damaged batches.

Damage is a value, not an exception: a damaged batch is reported and stepped over, and everything
around it stays readable.
"""

from dataclasses import dataclass


class LogError(Exception):
    """The log cannot do this."""


class LogFailed(LogError):
    """The log refuses writes because an earlier write or sync failed."""


class SpecError(ValueError):
    """A consumer or queue argument of the log cannot be understood."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that hold no valid batch, and the offsets lost with them.

    `next_offset` is None while nothing valid is known to follow in the segment.
    """

    segment: int
    position: int
    length: int
    first_offset: int
    next_offset: int | None
    reason: str
