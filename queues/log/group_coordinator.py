"""Group coordinator: which member reads which partition, and the group's committed offsets.

Invariants: after a rebalance every partition is assigned to exactly one member (to none if there
are no members), the members' loads differ by at most one, and no more partitions moved than that
needs. Until then a new member has no partition, and those of a member that left are unassigned.
The committed offset of a partition is the next offset to process. Except for a reset it only rises,
and it never passes a record that was not settled. A partition that moves to another member
continues exactly there, so no record is skipped and only uncommitted ones are redelivered.

A member holds a partition through a `PartitionAssignment`. When the partition moves, the assignment
is revoked, and later acks for it have no effect. A member that asked for it releases the partition
first: until then it receives no more records of it, its acks count, and nobody else gets it. The
`save` callback stores offsets, together with whatever else its caller makes durable. Pure logic,
owned by one thread (the event loop). A crash leaves the saved offsets, from which a new coordinator
starts.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Generic, TypeVar

from leveret.queues.log.files.errors import LogError

M = TypeVar("M", bound=Hashable)


class CommitMode(Enum):
    ON_ACK = "ack"
    ON_DELIVERY = "delivery"
    AT_INTERVALS = "interval"


class AckResult(Enum):
    COMMITTED = "committed"
    PENDING = "pending"
    STALE = "stale"


def assign(partitions: int, members: Sequence[M], current: Mapping[int, M]) -> dict[int, M]:
    """Decide which member owns each partition after a rebalance.

    Balanced, and as few as possible move from their `current` member.
    """
    if not members:
        return {}
    owned: dict[M, list[int]] = {member: [] for member in members}
    for partition in range(partitions):
        owner = current.get(partition)
        if owner in owned and owner is not None:
            owned[owner].append(partition)
    least, spare = divmod(partitions, len(members))
    busiest = sorted(members, key=lambda member: -len(owned[member]))
    quota = {member: least + (at < spare) for at, member in enumerate(busiest)}
    result = {p: member for member in members for p in owned[member][: quota[member]]}
    free = deque(p for p in range(partitions) if p not in result)
    for member in members:
        for _ in range(quota[member] - len(owned[member])):
            result[free.popleft()] = member
    return result


class PartitionAssignment(Generic[M]):
    """One partition assigned to one member, until it is revoked.

    `position` is the next offset to deliver to this member; `requeued` holds the offsets that the
    member requeued and that wait for redelivery. `is_releasing`: nothing more is delivered, and the
    assignment is revoked as soon as the member has released it.
    """

    def __init__(
        self, group: "GroupCoordinator[M]", partition: int, member: M, position: int
    ) -> None:
        self.partition = partition
        self.member = member
        self.generation = group.generation
        self.position = position
        self.requeued: set[int] = set()
        self.is_active = True
        self.is_releasing = False
        self._group = group
        self._mode = group.mode
        self._in_flight: deque[int] = deque()
        self._acked: set[int] = set()

    def __repr__(self) -> str:
        state = "releasing" if self.is_releasing else "active" if self.is_active else "revoked"
        return f"<Partition {self.partition} of {self.member!r} at {self.position} {state}>"

    @property
    def is_fenced(self) -> bool:
        """Whether acks would have committed offsets, but no longer do."""
        return not self.is_active and self._mode is CommitMode.ON_ACK

    @property
    def in_flight(self) -> int:
        return len(self._in_flight) - len(self._acked)

    def delivered(self, offsets: Sequence[int]) -> None:
        """These records, in ascending order, are being delivered to the member."""
        if not self.is_active:
            raise LogError(f"partition {self.partition} no longer belongs to {self.member!r}")
        if offsets[0] >= self.position:
            self.position = offsets[-1] + 1
            if self._mode is CommitMode.ON_ACK:
                self._in_flight.extend(offsets)
        else:
            self._redelivered(offsets)
        if self._mode is CommitMode.ON_DELIVERY:
            self._group.commit(self.partition, self.position)

    def _redelivered(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            if offset >= self.position:
                self.delivered([offset])
            else:
                self.requeued.discard(offset)

    def ack(self, offsets: Iterable[int]) -> AckResult:
        """The member processed these records; commits up to the first one that is not acked."""
        if not self.is_active:
            return AckResult.STALE
        in_flight, acked = self._in_flight, self._acked
        before = len(in_flight)
        for offset in offsets:
            if in_flight and offset == in_flight[0]:
                in_flight.popleft()
                while acked and in_flight and in_flight[0] in acked:
                    acked.remove(in_flight.popleft())
            elif self._is_in_flight(offset):
                acked.add(offset)
        if len(in_flight) == before:
            return AckResult.PENDING
        self._group.commit(self.partition, in_flight[0] if in_flight else self.position)
        return AckResult.COMMITTED

    def requeue(self, offset: int) -> AckResult:
        """The member requeued a record: the commit does not pass it before it is acked."""
        if not self.is_active:
            return AckResult.STALE
        if self._is_in_flight(offset) and offset not in self._acked:
            self.requeued.add(offset)
        return AckResult.PENDING

    def _is_in_flight(self, offset: int) -> bool:
        """Only delivered offsets are ever asked for, so comparing with the first one is enough."""
        return bool(self._in_flight) and self._in_flight[0] <= offset < self.position

    def revoke(self) -> None:
        self.is_active = self.is_releasing = False


@dataclass(frozen=True, slots=True)
class Rebalance(Generic[M]):
    """The assignments that changed; all others continue.

    Those in `releasing` end when the coordinator's `release` is called for them.
    """

    generation: int
    revoked: tuple[PartitionAssignment[M], ...] = ()
    granted: tuple[PartitionAssignment[M], ...] = ()
    releasing: tuple[PartitionAssignment[M], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.revoked or self.granted or self.releasing)


class GroupCoordinator(Generic[M]):
    """Members, assignments and committed offsets of one group on one log.

    `start` returns the first offset of a partition that the group has never read. That offset is
    saved at once, so that a group that started at the end does not do so again after a rebalance.
    `must_release` says whether a member releases an assignment before another one gets it.
    """

    def __init__(
        self,
        partitions: int,
        *,
        start: Callable[[int], int],
        save: Callable[[int, int], None],
        committed: Mapping[int, int] | None = None,
        mode: CommitMode = CommitMode.ON_ACK,
        must_release: Callable[[PartitionAssignment[M]], bool] = lambda _assignment: False,
    ) -> None:
        self.partitions = partitions
        self.mode = mode
        self.generation = 0
        self._start = start
        self._save = save
        self._must_release = must_release
        self._committed = dict(committed or {})
        self._members: dict[M, dict[int, PartitionAssignment[M]]] = {}
        """Members in the order they joined, each with its assignments by partition."""
        self._idle: dict[M, None] = {}
        """Members without a partition, in that order. No member loses its last partition."""
        self._assignments: dict[int, PartitionAssignment[M]] = {}
        self._has_started = False
        self._is_balanced = True

    def __repr__(self) -> str:
        return (
            f"<{len(self._members)} members, {self.partitions} partitions, gen {self.generation}>"
        )

    @property
    def members(self) -> list[M]:
        """All members, in the order they joined."""
        return list(self._members)

    @property
    def has_members(self) -> bool:
        return bool(self._members)

    def join(self, member: M) -> Rebalance[M]:
        self.add_member(member)
        return self.rebalance()

    def leave(self, member: M) -> Rebalance[M]:
        """The member left or died; a no-op for an unknown member."""
        revoked = self.remove_member(member)
        change = self.rebalance()
        return Rebalance(change.generation, (*revoked, *change.revoked), change.granted)

    def add_member(self, member: M) -> None:
        """Join without partitions until the next `rebalance`, so that many can join at once."""
        if member in self._members:
            return
        self.generation += 1
        self._start_once()
        self._members[member] = {}
        self._idle[member] = None
        if len(self._members) <= self.partitions:
            self._is_balanced = False

    def remove_member(self, member: M) -> tuple[PartitionAssignment[M], ...]:
        """Remove a member; its partitions are unassigned until the next `rebalance`."""
        assignments = self._members.pop(member, None)
        if assignments is None:
            return ()
        self.generation += 1
        self._idle.pop(member, None)
        for assignment in assignments.values():
            self._revoke(assignment)
            self._is_balanced = False
        return tuple(assignments.values())

    def release(self, assignments: Iterable[PartitionAssignment[M]]) -> None:
        """Revoke those that are being released; the next `rebalance` assigns their partitions."""
        released = [assignment for assignment in assignments if assignment.is_releasing]
        for assignment in released:
            self._revoke(assignment)
            del self._members[assignment.member][assignment.partition]
        if released:
            self.generation += 1
            self._is_balanced = False

    def _revoke(self, assignment: PartitionAssignment[M]) -> None:
        assignment.revoke()
        del self._assignments[assignment.partition]

    def commit_positions(self) -> None:
        """Commit everything delivered so far."""
        for partition, assignment in self._assignments.items():
            self.commit(partition, assignment.position)

    def assignments(self, member: M) -> list[PartitionAssignment[M]]:
        """The partitions assigned to a member; empty for an idle one."""
        return list(self._members.get(member, {}).values())

    def assignment(self, partition: int) -> PartitionAssignment[M] | None:
        return self._assignments.get(partition)

    def owners(self) -> dict[int, M]:
        return {partition: assignment.member for partition, assignment in self._assignments.items()}

    def committed(self, partition: int) -> int | None:
        """The committed offset; None if the group never read the partition."""
        return self._committed.get(partition)

    def commit(self, partition: int, offset: int) -> None:
        """Raise the committed offset; a lower offset is ignored."""
        if offset > self._committed.get(partition, -1):
            self._committed[partition] = offset
            self._save(partition, offset)

    def reset(self, partition: int, offset: int) -> Rebalance[M]:
        """Move the group back or forward to `offset`; records in flight are forgotten."""
        if not 0 <= partition < self.partitions:
            raise LogError(f"no partition {partition} among {self.partitions}")
        self._committed[partition] = offset
        self._save(partition, offset)
        old = self._assignments.get(partition)
        if old is None:
            return Rebalance(self.generation)
        if old.is_releasing:
            self.release([old])
            return Rebalance(self.generation, (old,))
        self.generation += 1
        old.revoke()
        return Rebalance(self.generation, (old,), (self._grant(partition, old.member),))

    def rebalance(self) -> Rebalance[M]:
        """Assign the free partitions and those that new members lack; returns only the changes."""
        if self._is_balanced:
            return Rebalance(self.generation)
        self._is_balanced = True
        current = {p: a.member for p, a in self._assignments.items() if not a.is_releasing}
        target = assign(self.partitions, self._eligible_members(), current)
        moved = [self._assignments[p] for p, member in current.items() if target[p] != member]
        releasing = tuple(a for a in moved if self._must_release(a))
        revoked = tuple(a for a in moved if not self._must_release(a))
        for assignment in releasing:
            assignment.is_releasing = True
        for assignment in revoked:
            self._revoke(assignment)
            del self._members[assignment.member][assignment.partition]
        granted = tuple(
            self._grant(partition, member)
            for partition, member in sorted(target.items(), key=lambda item: item[0])
            if partition not in self._assignments
        )
        return Rebalance(self.generation, revoked, granted, releasing)

    def _eligible_members(self) -> list[M]:
        """The members that get partitions; if there are too many, the first to join.

        There may be thousands of members, so the others are not even looked at.
        """
        if len(self._members) <= self.partitions:
            return self.members
        owners = list(dict.fromkeys(assignment.member for assignment in self._assignments.values()))
        return [*owners, *islice(self._idle, self.partitions - len(owners))]

    def _start_once(self) -> None:
        """Save a start offset for each partition that the group has never read."""
        if self._has_started:
            return
        for partition in range(self.partitions):
            if partition not in self._committed:
                self.commit(partition, self._start(partition))
        self._has_started = True

    def _grant(self, partition: int, member: M) -> PartitionAssignment[M]:
        assignment = PartitionAssignment(self, partition, member, self._committed[partition])
        self._assignments[partition] = assignment
        self._members[member][partition] = assignment
        self._idle.pop(member, None)
        return assignment
