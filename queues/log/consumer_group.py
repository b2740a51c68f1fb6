"""A consumer group with its live members: assignments become cursors, commits become saved offsets.

`GroupCoordinator` decides who reads what; this class connects it to consumers. Offsets that a
settlement moves are saved once per settlement and partition, in the store's current batch. After a
crash the group continues from the saved offsets: later records may be redelivered, none is skipped.
Event-loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.model.errors import PreconditionFailed
from leveret.queues.log.cursor import Cursor, ReadablePartition
from leveret.queues.log.deliveries import LogEntry
from leveret.queues.log.group_coordinator import (
    CommitMode,
    GroupCoordinator,
    PartitionAssignment,
    Rebalance,
)
from leveret.queues.log.spec import OffsetSpec, parse_offset_spec, resolve_offset

if TYPE_CHECKING:
    from leveret.queues.log.readers import ConsumerReader

logger = logging.getLogger("leveret.log")

DEFAULT_COMMIT_INTERVAL_MS = 5_000
SaveOffset = Callable[[int, str, int], None]
"""Arguments: queue id of the partition, group name, offset."""


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """When the group's offsets are committed; `interval_ms` is for `AT_INTERVALS` only."""

    mode: CommitMode = CommitMode.ON_ACK
    interval_ms: int = 0

    def __str__(self) -> str:
        every = f" of {self.interval_ms} ms" if self.interval_ms else ""
        return f"{self.mode.value}{every}"


class ConsumerGroup:
    def __init__(
        self,
        name: str,
        logs: Sequence[ReadablePartition],
        save: SaveOffset,
        wake_log: Callable[[], None],
        committed: Mapping[int, int] | None = None,
    ) -> None:
        self.name = name
        self.logs = logs
        self._save_offset = save
        self._wake_log = wake_log
        self._start = parse_offset_spec(None)
        self._unsaved: dict[int, int] = {}
        """Committed offsets that `_flush` has not saved yet, by partition."""
        self._delivered_to: dict[int, int] = {}
        """Highest position of revoked assignments, by partition: below it, records may repeat."""
        self._cursors: dict[int, Cursor] = {}
        self._interval_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._released: list[PartitionAssignment[ConsumerReader]] = []
        """Released by their members since the last rebalance."""
        self._release_timers: dict[tuple[tuple[int, int], ...], asyncio.TimerHandle] = {}
        """By the partitions to take away, and the generations of their assignments."""
        self._coordinator: GroupCoordinator[ConsumerReader] = GroupCoordinator(
            len(logs),
            start=self._start_offset,
            save=self._unsaved.__setitem__,
            committed=committed,
            must_release=lambda assignment: assignment.member.must_release(assignment),
        )

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.name!r} {self._coordinator!r}>"

    # Members -----------------------------------------------------------------------------------

    @property
    def members(self) -> list[ConsumerReader]:
        return self._coordinator.members

    @property
    def generation(self) -> int:
        return self._coordinator.generation

    def assignments(self, member: ConsumerReader) -> list[PartitionAssignment[ConsumerReader]]:
        return self._coordinator.assignments(member)

    @property
    def plan(self) -> CommitPlan:
        return CommitPlan(self._coordinator.mode, self._interval_ms)

    def join(self, member: ConsumerReader, start: OffsetSpec, plan: CommitPlan) -> None:
        """Add a member; it gets its partitions at the end of the loop iteration.

        `start` applies to partitions that the group has never read, and to those whose end was lost
        together with the group's offset (Kafka: auto.offset.reset). All members use the same plan.
        """
        if self._coordinator.has_members and plan != self.plan:
            raise PreconditionFailed(
                f"invalid arg 'x-commit': the members of group '{self.name}' commit by {self.plan}"
            )
        self._coordinator.mode, self._interval_ms = plan.mode, plan.interval_ms
        self._start = start
        if not self._coordinator.has_members:
            self._reset_lost_offsets()
        self._coordinator.add_member(member)
        self._flush()
        self._wake_log()
        self._schedule_commit()

    def _reset_lost_offsets(self) -> None:
        """Move the group to where its members start, if its offset is among lost records."""
        for partition, log in enumerate(self.logs):
            committed = self._coordinator.committed(partition)
            if committed is None or not log.has_lost or not log.is_end_lost_at(committed):
                continue
            offset = self._start_offset(partition)
            logger.warning(
                "%s: the end of the log was lost; group '%s' moves from offset %d to %d",
                log.full_name,
                self.name,
                committed,
                offset,
            )
            self._coordinator.reset(partition, offset)

    def leave(self, member: ConsumerReader) -> None:
        """Remove a member; its partitions are reassigned at the end of the loop iteration."""
        self._close_cursors(self._coordinator.remove_member(member))
        self._wake_log()

    def rebalance(self) -> None:
        """Reassign partitions after any number of joins and leaves; a no-op if there were none."""
        if self._released:
            self._coordinator.release(self._released)
            self._released = []
        change = self._coordinator.rebalance()
        if change:
            self._apply(change)

    def release(self, assignments: Iterable[PartitionAssignment[ConsumerReader]]) -> None:
        """A member has released these; they are revoked with the next rebalance.

        Not now, because acks in the same transaction or after it in the same read still count.
        """
        self._released += assignments

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for timer in self._release_timers.values():
            timer.cancel()
        self._release_timers.clear()

    def break_cycles(self) -> None:
        """Drop the references that lead back to this group and the log: the group is deleted.

        A request that still lists this group finds no members and no partitions.
        """
        self.close()
        self.logs = ()
        self._coordinator = GroupCoordinator(0, start=lambda _: 0, save=lambda *_: None)

    def _close_cursors(self, assignments: Iterable[PartitionAssignment[ConsumerReader]]) -> None:
        for assignment in assignments:
            partition = assignment.partition
            cursor = self._cursors.get(partition)
            if cursor is not None and cursor.assignment is assignment:
                assignment.member.remove_cursor(self._cursors.pop(partition))
            delivered_to = self._delivered_to.get(partition, 0)
            self._delivered_to[partition] = max(delivered_to, assignment.position)
            assignment.member.notify_later()

    def _apply(self, change: Rebalance[ConsumerReader]) -> None:
        self._close_cursors(change.revoked)
        self._close_cursors(change.releasing)
        self._limit_release(change.releasing)
        for assignment in change.granted:
            partition = assignment.partition
            redelivered_below = self._delivered_to.get(partition, 0)
            log = self.logs[partition]
            cursor = Cursor(log, assignment.position, self._wake_log, assignment, redelivered_below)
            self._cursors[partition] = cursor
            assignment.member.add_cursor(cursor)
            assignment.member.notify_later()
        self._flush()
        self._wake_log()

    def _limit_release(self, assignments: Iterable[PartitionAssignment[ConsumerReader]]) -> None:
        """Take the partitions away if their members have not released them in time."""
        by_member: dict[ConsumerReader, list[tuple[int, int]]] = {}
        for assignment in assignments:
            place = (assignment.partition, assignment.generation)
            by_member.setdefault(assignment.member, []).append(place)
        for member, places in by_member.items():
            key, loop = tuple(places), asyncio.get_running_loop()
            self._release_timers[key] = loop.call_later(
                member.release_seconds, self._on_release_timeout, key
            )

    def _on_release_timeout(self, places: tuple[tuple[int, int], ...]) -> None:
        del self._release_timers[places]
        overdue = [
            assignment
            for partition, generation in places
            if (assignment := self._coordinator.assignment(partition)) is not None
            and assignment.generation == generation
            and assignment.is_releasing
        ]
        if overdue:
            self._coordinator.release(overdue)
            self._close_cursors(overdue)
            self.rebalance()

    def _start_offset(self, partition: int) -> int:
        log = self.logs[partition]
        return resolve_offset(self._start, log, log.now_ms())

    # Offsets -----------------------------------------------------------------------------------

    def committed(self, partition: int) -> int | None:
        return self._coordinator.committed(partition)

    def commit(self, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            self._coordinator.commit(partition, offset)
        self._flush()

    def reset(self, partition: int, offset: int) -> None:
        """Move back or forward; the member that reads the partition continues at `offset`."""
        self._apply(self._coordinator.reset(partition, offset))
        self.rebalance()

    def on_deliver(self, entries: Sequence[LogEntry]) -> bool:
        """Record a delivery to a member; False if it must wait until the offset is saved."""
        assignment = entries[0].cursor.assignment
        assert assignment is not None
        assignment.delivered([entry.id for entry in entries])
        if self._coordinator.mode is not CommitMode.ON_DELIVERY:
            return True
        must_wait = bool(self._unsaved)
        self._flush()
        return not must_wait

    def ack(self, entries: Sequence[LogEntry]) -> None:
        for cursor, offsets in _offsets_by_cursor(entries).items():
            if cursor.assignment is not None:
                cursor.assignment.ack(offsets)
        self._flush()

    def requeue(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            cursor = entry.cursor
            if cursor.assignment is not None and not cursor.is_closed:
                cursor.assignment.requeue(entry.id)
                cursor.requeue(entry.record)

    def _schedule_commit(self) -> None:
        """Commit at intervals as long as there are members."""
        if self._timer is None and self._interval_ms and self._coordinator.has_members:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_ms / 1000, self._commit_positions)

    def _commit_positions(self) -> None:
        self._timer = None
        if self._coordinator.mode is CommitMode.AT_INTERVALS:
            self._coordinator.commit_positions()
            self._flush()
        self._schedule_commit()

    def _flush(self) -> None:
        for partition, offset in self._unsaved.items():
            self._save_offset(self.logs[partition].id, self.name, offset)
        self._unsaved.clear()


def _offsets_by_cursor(entries: Sequence[LogEntry]) -> dict[Cursor, list[int]]:
    """The entries' offsets by cursor, in the given order."""
    first = entries[0].cursor
    offsets = [entry.id for entry in entries if entry.cursor is first]
    if len(offsets) == len(entries):
        return {first: offsets}
    by_cursor: dict[Cursor, list[int]] = {}
    for entry in entries:
        by_cursor.setdefault(entry.cursor, []).append(entry.id)
    return by_cursor
