"""The checker: classifies what clients saw, as Jepsen does for a total queue.

lost: confirmed, but neither delivered again nor left in a queue. phantom: delivered but never sent,
or delivered with a damaged body. duplicate: delivered twice, without `redelivered` the second time.
reordered: first deliveries from one publisher to one queue that are out of sequence. recovered:
sent, not confirmed before a crash, but delivered; this is allowed.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import defaultdict
from dataclasses import dataclass, field

_HEAD = struct.Struct(">IIQ")  # CRC of the rest, publisher, sequence


def make_body(publisher: int, sequence: int, size: int) -> bytes:
    rest = _HEAD.pack(0, publisher, sequence)[4:] + os.urandom(8) * max(0, (size - 16) // 8)
    return struct.pack(">I", zlib.crc32(rest)) + rest


def read_body(body: bytes) -> tuple[int, int] | None:
    """(publisher, sequence), or None if the body is not what was sent."""
    if len(body) < _HEAD.size:
        return None
    crc, publisher, sequence = _HEAD.unpack_from(body)
    return (publisher, sequence) if zlib.crc32(body[4:]) == crc else None


@dataclass(slots=True)
class Verdict:
    sent: int
    confirmed: int
    delivered: int
    recovered: int
    lost: int
    phantom: int
    duplicate: int
    reordered: int
    returned_acked: int

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.phantom or self.duplicate or self.reordered)

    def __str__(self) -> str:
        return (
            f"{self.sent} sent, {self.confirmed} confirmed, {self.delivered} delivered, "
            f"{self.recovered} recovered; lost {self.lost}, phantom {self.phantom}, "
            f"unmarked duplicates {self.duplicate}, reordered {self.reordered}, "
            f"acked and synced but redelivered {self.returned_acked}"
        )


@dataclass(slots=True)
class Ledger:
    """What every client sent and received, by stream (queue, publisher)."""

    sent: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    confirmed: set[tuple[str, int, int]] = field(default_factory=set)
    seen: dict[tuple[str, int, int], int] = field(default_factory=dict)
    newest: dict[tuple[str, int], int] = field(default_factory=dict)
    settled: set[tuple[str, int, int]] = field(default_factory=set)
    phantom: int = 0
    duplicate: int = 0
    reordered: int = 0
    returned_acked: int = 0

    def will_send(self, queue: str, publisher: int) -> int:
        """Return the next sequence number, which counts as sent from now on."""
        self.sent[queue, publisher] += 1
        return self.sent[queue, publisher]

    def was_confirmed(self, queue: str, publisher: int, sequence: int) -> None:
        self.confirmed.add((queue, publisher, sequence))

    def was_delivered(self, queue: str, body: bytes, redelivered: bool) -> None:
        known = read_body(body)
        if known is None or known[1] > self.sent.get((queue, known[0]), 0):
            self.phantom += 1
            return
        key = (queue, *known)
        if key in self.settled:
            self.returned_acked += 1
        if key in self.seen:
            self.duplicate += not redelivered
        elif known[1] <= self.newest.get((queue, known[0]), 0):
            self.reordered += 1
        else:
            self.newest[queue, known[0]] = known[1]
        self.seen[key] = self.seen.get(key, 0) + 1

    def was_settled(self, queue: str, body: bytes) -> None:
        """Acked and followed by a synchronous answer: must never be delivered again."""
        known = read_body(body)
        if known is not None:
            self.settled.add((queue, *known))

    def verdict(self) -> Verdict:
        return Verdict(
            sent=sum(self.sent.values()),
            confirmed=len(self.confirmed),
            delivered=len(self.seen),
            recovered=len(self.seen.keys() - self.confirmed),
            lost=len(self.confirmed - self.seen.keys()),
            phantom=self.phantom,
            duplicate=self.duplicate,
            reordered=self.reordered,
            returned_acked=self.returned_acked,
        )
