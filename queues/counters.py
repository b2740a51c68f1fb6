"""Counts of what happened to a queue's messages since it was declared or recovered."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.queues.delivery import Delivery
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

    def delivered(self, delivery: Delivery, no_ack: bool) -> None:
        if no_ack:
            self.delivered_no_ack += delivery.count
        else:
            self.delivered_ack += delivery.count
        if delivery.part is None:
            self.redelivered += delivery.redelivered

    def got(self, entry: Entry, no_ack: bool) -> None:
        if no_ack:
            self.got_no_ack += 1
        else:
            self.got_ack += 1
        self.redelivered += entry.redelivered
