"""Notifications about a rebalance: a member of a group learns which partitions it gains and loses.

A consumer asks for them with the argument `x-rebalance-notify`. A notification is a delivery on the
same consumer, in order with the records, so every AMQP client can receive it. It has the header
`x-rebalance` and a JSON body. `assigned` comes before the first record of a partition, `revoked`
after the last one; the partition moves when the member has settled `revoked`. `lost` means that the
partition is gone already.

Notifications that cannot be sent yet are not stored: what the member was told is compared with what
it has when it can receive again. So a member that does not read costs no memory.
Event-loop thread only. A crash ends all assignments; members that join again are told anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from leveret.model.message import Address, Message, encode_properties
from leveret.queues.entry import Entry
from leveret.queues.log.deliveries import REBALANCE_HEADER
from leveret.queues.log.group_coordinator import PartitionAssignment

if TYPE_CHECKING:
    from leveret.queues.log.readers import ConsumerReader

    Assignments = Sequence[PartitionAssignment[ConsumerReader]]


class RebalanceKind(Enum):
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


class RebalanceEntry(Entry):
    """The delivery of a notification; settling it in any way releases the `releasing` ones."""

    __slots__ = ("reader", "releasing")

    def __init__(self, message: Message, reader: ConsumerReader, releasing: Assignments) -> None:
        super().__init__(message)
        self.reader = reader
        self.releasing = releasing


class RebalanceNotifier:
    """What one member was told about its partitions.

    `timeout_ms` is how long the member may take to release a partition.
    """

    def __init__(self, log: str, group: str, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.is_due = False
        """Whether the member's partitions have changed since the last notification."""
        self._address = Address.of("", log)
        self._group = group
        self._told: dict[PartitionAssignment[ConsumerReader], RebalanceKind] = {}
        """The partitions that the member believes to have, with what it was told last."""

    def __repr__(self) -> str:
        return f"<RebalanceNotifier of {len(self._told)} partitions>"

    def must_release(self, assignment: PartitionAssignment[ConsumerReader]) -> bool:
        """Whether the member knows that it has the partition, and is given time to release it."""
        return self.timeout_ms > 0 and assignment in self._told

    def notifications(
        self,
        reader: ConsumerReader,
        generation: int,
        owned: Iterable[PartitionAssignment[ConsumerReader]],
    ) -> list[RebalanceEntry]:
        """What the member has to be told now, given the assignments that it has."""
        told, self.is_due = self._told, False
        owned = list(owned)
        changes = {
            RebalanceKind.LOST: [a for a in told if not a.is_active],
            RebalanceKind.REVOKED: [
                a for a in owned if a.is_releasing and told.get(a) is RebalanceKind.ASSIGNED
            ],
            RebalanceKind.ASSIGNED: [a for a in owned if not a.is_releasing and a not in told],
        }
        entries = []
        for kind, assignments in changes.items():
            if assignments:
                self._note(kind, assignments)
                releasing = assignments if kind is RebalanceKind.REVOKED else ()
                message = self._message(kind, generation, assignments)
                entries.append(RebalanceEntry(message, reader, releasing))
        return entries

    def _note(self, kind: RebalanceKind, assignments: Assignments) -> None:
        for assignment in assignments:
            if kind is RebalanceKind.LOST:
                del self._told[assignment]
            else:
                self._told[assignment] = kind

    def on_released(self, assignments: Assignments) -> None:
        """The member has settled the notification that these are revoked."""
        for assignment in assignments:
            self._told.pop(assignment, None)

    def _message(self, kind: RebalanceKind, generation: int, assignments: Assignments) -> Message:
        """The partitions are in the body: with many of them, headers might not fit into a frame."""
        ordered = sorted(assignments, key=lambda assignment: assignment.partition)
        body: dict[str, object] = {
            "group": self._group,
            "generation": generation,
            "partitions": [assignment.partition for assignment in ordered],
        }
        if kind is RebalanceKind.ASSIGNED:
            body["offsets"] = {str(a.partition): a.position for a in ordered}
        properties = {
            "content_type": "application/json",
            "headers": {REBALANCE_HEADER: kind.value},
        }
        return Message.build(
            self._address, encode_properties(properties), json.dumps(body).encode()
        )
