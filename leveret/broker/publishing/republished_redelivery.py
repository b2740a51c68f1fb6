"""Marks republished messages that consumers may have seen before a crash as redelivered.

Messages that stayed in a queue are marked by its lease (queues/classic/crash_redelivery.py). Dead
letters and messages whose delay has ended are republished under a new id. Like all messages they
are delivered before they are on disk. A crash then undoes the move but not the delivery: the old
message is back and is republished once more, under another id. That id is marked as redelivered if
the queue it reaches had consumers. Event-loop thread only; nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.broker.publishing.plugin_exchanges import final_targets
from leveret.queues.port import Target


class RepublishedRedelivery:
    __slots__ = ("last_id_before_crash",)

    def __init__(self) -> None:
        self.last_id_before_crash = 0
        """0 after a clean stop."""

    def mark(self, old_id: int, new_id: int, targets: Iterable[Target]) -> None:
        """Message `old_id` was just republished to these targets as `new_id`."""
        if old_id > self.last_id_before_crash:
            return
        for target in final_targets(targets):
            target.mark_redelivered(new_id)
