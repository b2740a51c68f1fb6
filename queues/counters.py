"""Counts of what happened to a queue's messages since it was declared or recovered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leveret.queues.entry import Entry


@dataclass(slots=True)
class QueueCounters:
    published: int = 0
    delivered_ack: int = 0
    delivered_no_ack: int = 0
    got_ack: int = 0
    got_no_ack: int = 0
    redelivered: int = 0
    acked: int = 0
    unreadable: int = 0

    def delivered(self, entries: Sequence[Entry], no_ack: bool) -> None:
        if no_ack:
            self.delivered_no_ack += len(entries)
        else:
            self.delivered_ack += len(entries)
        if entries[0].redelivered:
            self.redelivered += sum([entry.redelivered for entry in entries])

    def got(self, entry: Entry, no_ack: bool) -> None:
        if no_ack:
            self.got_no_ack += 1
        else:
            self.got_ack += 1
        self.redelivered += entry.redelivered
