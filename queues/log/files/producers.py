"""Idempotent producers: each sequence number is stored once, in order.

A producer names itself (`x-producer-id`) and numbers its messages (`x-producer-seq`). Invariant:
a partition contains each sequence number of a producer at most once, in ascending order. A number
that is not above the last one is a duplicate: it is confirmed, not stored. A number that leaves a
gap is rejected. An unknown producer may start with any number.

The producer state is a table in the memory of the event loop, updated when a message is accepted.
It is stored with the records (each batch names its producers) and restored by recovery, so it is
never ahead of or behind the log. The table keeps the most recent producers; one that was evicted
may start with any number again.
"""

from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum

MAX_PRODUCERS = 10_000


class SequenceResult(Enum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    GAP = "gap"


class ProducerState:
    """The last accepted sequence number of each producer of one partition."""

    def __init__(
        self, known: Mapping[bytes, int] | None = None, limit: int = MAX_PRODUCERS
    ) -> None:
        self._last: OrderedDict[bytes, int] = OrderedDict(known or {})
        self._limit = limit

    def __len__(self) -> int:
        return len(self._last)

    def __repr__(self) -> str:
        return f"<ProducerState {len(self._last)} producers>"

    def last(self, producer_id: bytes) -> int | None:
        return self._last.get(producer_id)

    def accept(
        self, producer_id: bytes, sequence: int, elsewhere: int | None = None
    ) -> SequenceResult:
        """Check a sequence number, and remember it if it is accepted.

        `elsewhere` is the producer's highest number in any partition of the log. Gaps are
        checked against the highest number in any partition, because the broker distributes the
        producer's messages over them; duplicates against this partition.
        """
        last = self._last.get(producer_id)
        if last is not None and sequence <= last:
            return SequenceResult.DUPLICATE
        known = [n for n in (last, elsewhere) if n is not None]
        if known and sequence > max(known) + 1:
            return SequenceResult.GAP
        self.remember(producer_id, sequence)
        return SequenceResult.ACCEPTED

    def remember(self, producer_id: bytes, sequence: int) -> None:
        self._last[producer_id] = sequence
        self._last.move_to_end(producer_id)
        if len(self._last) > self._limit:
            self._last.popitem(last=False)

    def items(self) -> list[tuple[bytes, int]]:
        return list(self._last.items())

    def forget(self, producer_id: bytes) -> None:
        """Undo an acceptance whose write failed: the producer may start with any number."""
        self._last.pop(producer_id, None)
