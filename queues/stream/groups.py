"""A consumer group with its live members: assignment becomes cursors, commits become saved offsets.

The arithmetic is `queues.log.Group`; this joins it to consumers. Offsets a settlement moves are
saved once per settlement and partition, in the store's current batch. After a crash the group
goes on at what was saved: records after it may come again, none is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from leveret.model.errors import PreconditionFailed
from queues.log import CommitMode, Group, OffsetSpec, parse_offset_spec, resolve_offset
from queues.log.groups import Lease, Rebalance
from queues.stream.cursor import Cursor, Readable
from queues.stream.reading import Reading
from queues.stream.records import LogEntry

DEFAULT_COMMIT_INTERVAL_MS = 5_000
SaveOffset = Callable[[int, str, int], None]
"""queue id of the partition, group, offset"""


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """When the group's offsets move; `interval_ms` counts for `AT_INTERVALS` alone."""

    mode: CommitMode = CommitMode.ON_ACK
    interval_ms: int = 0

    def __str__(self) -> str:
        every = f" of {self.interval_ms} ms" if self.interval_ms else ""
        return f"{self.mode.value}{every}"


class GroupLog(Readable, Protocol):
    """A partition as a group sees it."""

    id: int

    @property
    def first_offset(self) -> int: ...

    def offset_for_time(self, time_ms: int) -> int: ...

    def now_ms(self) -> int: ...


class LogGroup:
    def __init__(
        self,
        name: str,
        logs: Sequence[GroupLog],
        save: SaveOffset,
        wake: Callable[[], None],
        committed: Mapping[int, int] | None = None,
    ) -> None:
        self.name = name
        self.logs = logs
        self._save_offset = save
        self._wake = wake
        self._start = parse_offset_spec(None)
        self._changed: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        self._cursors: dict[int, Cursor] = {}
        self._interval_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._group: Group[Reading] = Group(
            len(logs), start=self._start_of, save=self._changed.__setitem__, committed=committed
        )

    def __repr__(self) -> str:
        return f"<LogGroup {self.name!r} {self._group!r}>"

    # Members -----------------------------------------------------------------------------------

    @property
    def members(self) -> list[Reading]:
        return self._group.members

    @property
    def plan(self) -> CommitPlan:
        return CommitPlan(self._group.mode, self._interval_ms)

    def join(self, member: Reading, start: OffsetSpec, plan: CommitPlan) -> None:
        """`start` counts where the group has never been; all members commit the same way.

        It gets its share at the end of the turn.
        """
        if self._group.has_members and plan != self.plan:
            raise PreconditionFailed(
                f"invalid arg 'x-commit': the members of group '{self.name}' commit by {self.plan}"
            )
        self._group.mode, self._interval_ms = plan.mode, plan.interval_ms
        self._start = start
        self._group.enter(member)
        self._flush()
        self._wake()
        self._tick()

    def _tick(self) -> None:
        """Commits at intervals go on as long as there are members."""
        if self._timer is None and self._interval_ms and self._group.has_members:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_ms / 1000, self._commit_positions)

    def _commit_positions(self) -> None:
        self._timer = None
        if self._group.mode is CommitMode.AT_INTERVALS:
            self._group.commit_positions()
            self._flush()
        self._tick()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def let_go(self) -> None:
        """It is forgotten: what it works with leads back to it, and to the log."""
        self.close()
        self.logs, self._group = (), cast(Group[Reading], None)

    def leave(self, member: Reading) -> None:
        """It gets nothing more; what it had is shared out at the end of the turn."""
        self._stop_reading(self._group.drop(member))
        self._wake()

    def share_out(self) -> None:
        """After members have come and gone, however many; free to call when none has."""
        change = self._group.rebalance()
        if change.revoked or change.granted:
            self._apply(change)

    def _stop_reading(self, leases: Iterable[Lease[Reading]]) -> None:
        for lease in leases:
            lease.member.stop_reading(self._cursors.pop(lease.partition))
            reached = self._reached.get(lease.partition, 0)
            self._reached[lease.partition] = max(reached, lease.position)

    def _apply(self, change: Rebalance[Reading]) -> None:
        self._stop_reading(change.revoked)
        for lease in change.granted:
            partition = lease.partition
            again = self._reached.get(partition, 0)
            log = self.logs[partition]
            cursor = Cursor(log, lease.position, self._wake, lease, again)
            self._cursors[partition] = cursor
            lease.member.read(cursor)
        self._flush()
        self._wake()

    def _start_of(self, partition: int) -> int:
        log = self.logs[partition]
        return resolve_offset(self._start, log, log.now_ms())

    # Offsets -----------------------------------------------------------------------------------

    def committed(self, partition: int) -> int | None:
        return self._group.committed(partition)

    def commit(self, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            self._group.commit(partition, offset)
        self._flush()

    def reset(self, partition: int, offset: int) -> None:
        """Back or forth; whoever reads the partition goes on there."""
        self._apply(self._group.reset(partition, offset))

    def commit_delivered(self, entries: Sequence[LogEntry]) -> bool:
        """These go to a member now; False if they must not leave before they are saved."""
        lease = entries[0].cursor.lease
        assert lease is not None
        lease.delivered([entry.id for entry in entries])
        if self._group.mode is not CommitMode.ON_DELIVERY:
            return True
        must_wait = bool(self._changed)
        self._flush()
        return not must_wait

    def acked(self, entries: Sequence[LogEntry]) -> None:
        for cursor, offsets in _by_cursor(entries).items():
            if cursor.lease is not None:
                cursor.lease.ack(offsets)
        self._flush()

    def given_back(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            cursor = entry.cursor
            if cursor.lease is not None and not cursor.is_closed:
                cursor.lease.requeue(entry.id)
                cursor.give_back(entry.message.record)

    def _flush(self) -> None:
        for partition, offset in self._changed.items():
            self._save_offset(self.logs[partition].id, self.name, offset)
        self._changed.clear()


def _by_cursor(entries: Sequence[LogEntry]) -> dict[Cursor, list[int]]:
    """Offsets of each cursor, in the order they were given."""
    first = entries[0].cursor
    offsets = [entry.id for entry in entries if entry.cursor is first]
    if len(offsets) == len(entries):
        return {first: offsets}
    found: dict[Cursor, list[int]] = {}
    for entry in entries:
        found.setdefault(entry.cursor, []).append(entry.id)
    return found
