"""Idempotent producers: store each numbered message once, in order.

A producer names itself (`x-producer-id`) and numbers its messages (`x-producer-seq`).  Invariant:
of one producer, the partition holds each number at most once and in rising order.  A number not
above the last stored one is a duplicate: confirmed, not stored.  A number that leaves some out is
a gap: refused.  The first number of an unknown producer may be any.

The state is a plain table in the memory of the event loop, advanced when a message is accepted.
It is stored with the records themselves (each batch names its producers) and read back by
recovery, so it can be neither ahead of nor behind the log.  The table keeps the producers heard
of last; one that is forgotten starts anew.
"""

from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum

MAX_PRODUCERS = 10_000


class Verdict(Enum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    GAP = "gap"


class ProducerTable:
    """The last accepted number of each producer of one partition."""

    def __init__(
        self, known: Mapping[bytes, int] | None = None, limit: int = MAX_PRODUCERS
    ) -> None:
        self._last: OrderedDict[bytes, int] = OrderedDict(known or {})
        self._limit = limit

    def __len__(self) -> int:
        return len(self._last)

    def __repr__(self) -> str:
        return f"<ProducerTable {len(self._last)} producers>"

    def last(self, producer_id: bytes) -> int | None:
        return self._last.get(producer_id)

    def judge(self, producer_id: bytes, sequence: int, elsewhere: int | None = None) -> Verdict:
        """Accept, and remember, or say why not.

        `elsewhere` is the highest number of this producer in the other partitions of its log,
        when the broker spreads one numbered stream over several: gaps are then judged against
        the highest anywhere, duplicates still against this partition.
        """
        last = self._last.get(producer_id)
        if last is not None and sequence <= last:
            return Verdict.DUPLICATE
        known = [n for n in (last, elsewhere) if n is not None]
        if known and sequence > max(known) + 1:
            return Verdict.GAP
        self._last[producer_id] = sequence
        self._last.move_to_end(producer_id)
        if len(self._last) > self._limit:
            self._last.popitem(last=False)
        return Verdict.ACCEPTED

    def items(self) -> list[tuple[bytes, int]]:
        return list(self._last.items())

    def forget(self, producer_id: bytes) -> None:
        """Take back an acceptance whose write failed: the producer may start anew."""
        self._last.pop(producer_id, None)
