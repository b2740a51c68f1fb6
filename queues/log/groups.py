"""Consumer groups: which member reads which partition, and how far the group has come.

Invariants: once the group has been rebalanced every partition belongs to exactly one member (to
none while there are no members) and loads differ by at most one; a change moves no more partitions
than that needs.  Until then a newcomer has nothing, and what a member that left had is nobody's.
The committed offset of a partition is the next one to process: it only rises (a reset apart), never
passes a record that was not settled, and a partition that changes hands goes on exactly there, so
nothing is skipped and only what was not yet committed comes again.

A member holds a partition through a `Lease`.  When the partition moves the lease is revoked, and
acks that still come for it change nothing.  Offsets are stored by the `save` callable, together
with whatever else the caller makes durable.  Pure logic, owned by one thread (the event loop); a
crash leaves the saved offsets, from which a new `Group` starts.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Generic, TypeVar

from queues.log.errors import LogError

M = TypeVar("M", bound=Hashable)


class CommitMode(Enum):
    ON_ACK = "ack"
    ON_DELIVERY = "delivery"
    AT_INTERVALS = "interval"


class Settled(Enum):
    COMMITTED = "committed"
    PENDING = "pending"
    STALE = "stale"


def assign(partitions: int, members: Sequence[M], current: Mapping[int, M]) -> dict[int, M]:
    """Share out partitions 0..n-1: balanced, and as much as possible as it is now."""
    if not members:
        return {}
    held: dict[M, list[int]] = {member: [] for member in members}
    for partition in range(partitions):
        owner = current.get(partition)
        if owner in held and owner is not None:
            held[owner].append(partition)
    least, spare = divmod(partitions, len(members))
    busiest = sorted(members, key=lambda member: -len(held[member]))
    quota = {member: least + (at < spare) for at, member in enumerate(busiest)}
    result = {p: member for member in members for p in held[member][: quota[member]]}
    free = deque(p for p in range(partitions) if p not in result)
    for member in members:
        for _ in range(quota[member] - len(held[member])):
            result[free.popleft()] = member
    return result


class Lease(Generic[M]):
    """One member's hold on one partition.

    `position` is the next offset to read for this member; `again` holds the offsets that were
    given back and wait to be delivered once more.
    """

    def __init__(self, group: "Group[M]", partition: int, member: M, position: int) -> None:
        self.partition = partition
        self.member = member
        self.generation = group.generation
        self.position = position
        self.again: set[int] = set()
        self.is_active = True
        self._group = group
        self._in_flight: deque[int] = deque()
        self._acked: set[int] = set()

    def __repr__(self) -> str:
        state = "active" if self.is_active else "revoked"
        return f"<Lease {self.partition} of {self.member!r} at {self.position} {state}>"

    @property
    def in_flight(self) -> int:
        return len(self._in_flight) - len(self._acked)

    def delivered(self, offsets: Sequence[int]) -> None:
        """These records, in rising order, are on their way to the member."""
        if not self.is_active:
            raise LogError(f"partition {self.partition} no longer belongs to {self.member!r}")
        if offsets[0] >= self.position:
            self.position = offsets[-1] + 1
            if self._group.mode is CommitMode.ON_ACK:
                self._in_flight.extend(offsets)
        else:
            self._delivered_again(offsets)
        if self._group.mode is CommitMode.ON_DELIVERY:
            self._group.commit(self.partition, self.position)

    def _delivered_again(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            if offset >= self.position:
                self.delivered([offset])
            else:
                self.again.discard(offset)

    def ack(self, offsets: Iterable[int]) -> Settled:
        """The member has processed records; commits as far as all before them are settled."""
        if not self.is_active:
            return Settled.STALE
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
            return Settled.PENDING
        self._group.commit(self.partition, in_flight[0] if in_flight else self.position)
        return Settled.COMMITTED

    def requeue(self, offset: int) -> Settled:
        """The member gave a record back: it is delivered again before the commit passes it."""
        if not self.is_active:
            return Settled.STALE
        if self._is_in_flight(offset) and offset not in self._acked:
            self.again.add(offset)
        return Settled.PENDING

    def _is_in_flight(self, offset: int) -> bool:
        """Only what was delivered is ever asked for, so its place among the offsets tells."""
        return bool(self._in_flight) and self._in_flight[0] <= offset < self.position

    def revoke(self) -> None:
        self.is_active = False


@dataclass(frozen=True, slots=True)
class Rebalance(Generic[M]):
    """What changed hands.  Leases in neither list go on as they were."""

    generation: int
    revoked: tuple[Lease[M], ...]
    granted: tuple[Lease[M], ...]


class Group(Generic[M]):
    """The members of one group over the partitions of one log.

    `start` gives the first offset for a partition the group has never read; it is saved at once,
    so that a group that began at the end does not begin there again after a rebalance.
    """

    def __init__(
        self,
        partitions: int,
        *,
        start: Callable[[int], int],
        save: Callable[[int, int], None],
        committed: Mapping[int, int] | None = None,
        mode: CommitMode = CommitMode.ON_ACK,
    ) -> None:
        self.partitions = partitions
        self.mode = mode
        self.generation = 0
        self._start = start
        self._save = save
        self._committed = dict(committed or {})
        self._members: dict[M, dict[int, Lease[M]]] = {}
        """With what they hold, in the order they joined."""
        self._idle: dict[M, None] = {}
        """Who holds nothing, in that order: who has held something always keeps something."""
        self._leases: dict[int, Lease[M]] = {}
        self._is_begun = False
        self._is_shared_out = True

    def __repr__(self) -> str:
        return f"<Group of {len(self._members)} over {self.partitions}, gen {self.generation}>"

    @property
    def members(self) -> list[M]:
        """In the order they joined."""
        return list(self._members)

    @property
    def has_members(self) -> bool:
        return bool(self._members)

    def join(self, member: M) -> Rebalance[M]:
        self.enter(member)
        return self.rebalance()

    def leave(self, member: M) -> Rebalance[M]:
        """The member left or died; free to call for one that is not here."""
        dropped = self.drop(member)
        change = self.rebalance()
        return Rebalance(change.generation, (*dropped, *change.revoked), change.granted)

    def enter(self, member: M) -> None:
        """Join, and get a share with the next `rebalance`: many may come at once."""
        if member in self._members:
            return
        self.generation += 1
        self._begin()
        self._members[member] = {}
        self._idle[member] = None
        if len(self._members) <= self.partitions:
            self._is_shared_out = False

    def drop(self, member: M) -> tuple[Lease[M], ...]:
        """Leave: what the member held is nobody's until the next `rebalance`."""
        held = self._members.pop(member, None)
        if held is None:
            return ()
        self.generation += 1
        self._idle.pop(member, None)
        for partition, lease in held.items():
            lease.revoke()
            del self._leases[partition]
            self._is_shared_out = False
        return tuple(held.values())

    def commit_positions(self) -> None:
        """Everything delivered so far counts as processed."""
        for partition, lease in self._leases.items():
            self.commit(partition, lease.position)

    def leases(self, member: M) -> list[Lease[M]]:
        """The partitions of a member; empty for an idle one."""
        return list(self._members.get(member, {}).values())

    def lease(self, partition: int) -> Lease[M] | None:
        return self._leases.get(partition)

    def assignment(self) -> dict[int, M]:
        return {partition: lease.member for partition, lease in self._leases.items()}

    def committed(self, partition: int) -> int | None:
        """The next offset the group will process; None if it never read the partition."""
        return self._committed.get(partition)

    def commit(self, partition: int, offset: int) -> None:
        """Raise the committed offset; lower ones are ignored."""
        if offset > self._committed.get(partition, -1):
            self._committed[partition] = offset
            self._save(partition, offset)

    def reset(self, partition: int, offset: int) -> Rebalance[M]:
        """Move the group to another offset, back or forth; what is in flight is forgotten."""
        if not 0 <= partition < self.partitions:
            raise LogError(f"no partition {partition} among {self.partitions}")
        self._committed[partition] = offset
        self._save(partition, offset)
        old = self._leases.get(partition)
        if old is None:
            return Rebalance(self.generation, (), ())
        self.generation += 1
        old.revoke()
        return Rebalance(self.generation, (old,), (self._grant(partition, old.member),))

    def rebalance(self) -> Rebalance[M]:
        """Share out what is free, and what newcomers lack; only what has changed is told."""
        if self._is_shared_out:
            return Rebalance(self.generation, (), ())
        self._is_shared_out = True
        wanted = assign(self.partitions, self._sharers(), self.assignment())
        moved = [p for p, lease in self._leases.items() if wanted[p] != lease.member]
        revoked = tuple(self._leases.pop(partition) for partition in moved)
        for lease in revoked:
            lease.revoke()
            del self._members[lease.member][lease.partition]
        granted = tuple(
            self._grant(partition, member)
            for partition, member in sorted(wanted.items(), key=lambda item: item[0])
            if partition not in self._leases
        )
        return Rebalance(self.generation, revoked, granted)

    def _sharers(self) -> list[M]:
        """Who is to have something: with more members than partitions, those who have come first.

        There may be thousands, so the others are not even looked at.
        """
        if len(self._members) <= self.partitions:
            return self.members
        holders = list(dict.fromkeys(lease.member for lease in self._leases.values()))
        return [*holders, *islice(self._idle, self.partitions - len(holders))]

    def _begin(self) -> None:
        """Where the group has never been, its first member says where it starts."""
        if self._is_begun:
            return
        for partition in range(self.partitions):
            if partition not in self._committed:
                self.commit(partition, self._start(partition))
        self._is_begun = True

    def _grant(self, partition: int, member: M) -> Lease[M]:
        lease = Lease(self, partition, member, self._committed[partition])
        self._leases[partition] = lease
        self._members[member][partition] = lease
        self._idle.pop(member, None)
        return lease
