import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queues.log import CommitMode, Group, LogError
from queues.log.groups import Settled, assign


def group(partitions: int = 3, **options) -> tuple[Group[str], list[tuple[int, int]]]:
    saved: list[tuple[int, int]] = []
    options.setdefault("start", lambda partition: 0)
    return Group(partitions, save=lambda p, o: saved.append((p, o)), **options), saved


# Assignment.

members_lists = st.lists(st.integers(0, 30), unique=True, max_size=12)


@given(st.integers(0, 40), members_lists, st.dictionaries(st.integers(0, 50), st.integers(0, 40)))
def test_every_partition_exactly_once_and_balanced(partitions, members, current):
    result = assign(partitions, members, current)
    if not members:
        assert result == {}
        return
    assert sorted(result) == list(range(partitions))
    loads = Counter(dict.fromkeys(members, 0))
    loads.update(result.values())
    assert set(loads) == set(members)
    assert max(loads.values()) - min(loads.values()) <= 1


@given(st.integers(0, 40), members_lists.filter(bool), st.integers(100, 200))
def test_a_join_moves_only_what_the_newcomer_gets(partitions, members, newcomer):
    before = assign(partitions, members, {})
    after = assign(partitions, [*members, newcomer], before)
    moved = [p for p in range(partitions) if before[p] != after[p]]
    assert all(after[p] == newcomer for p in moved)
    assert len(moved) == partitions // (len(members) + 1)


@given(st.integers(0, 40), members_lists.filter(lambda m: len(m) > 1), st.data())
def test_a_leave_moves_only_what_the_leaver_had(partitions, members, data):
    before = assign(partitions, members, {})
    leaver = data.draw(st.sampled_from(members))
    after = assign(partitions, [m for m in members if m != leaver], before)
    assert all(after[p] == before[p] for p in range(partitions) if before[p] != leaver)


@given(st.integers(0, 40), members_lists.filter(bool))
def test_assigning_again_moves_nothing(partitions, members):
    before = assign(partitions, members, {})
    assert assign(partitions, members, before) == before


def test_three_members_three_partitions_and_a_fourth_idle():
    g, _ = group(3)
    for name in "abcd":
        g.join(name)
    assert {name: len(g.leases(name)) for name in "abcd"} == {"a": 1, "b": 1, "c": 1, "d": 0}
    g.leave("b")
    assert {name: len(g.leases(name)) for name in "acd"} == {"a": 1, "c": 1, "d": 1}


def test_the_generation_rises_with_every_change():
    g, _ = group(2)
    generations = [g.join("a").generation, g.join("b").generation, g.leave("a").generation]
    assert generations == [1, 2, 3]
    assert g.join("b").generation == 3
    assert g.leave("nobody").generation == 3


def test_a_rebalance_names_what_moved():
    g, _ = group(2)
    assert [lease.partition for lease in g.join("a").granted] == [0, 1]
    change = g.join("b")
    assert [(x.partition, x.member, x.is_active) for x in change.revoked] == [(1, "a", False)]
    assert [(x.partition, x.member, x.generation) for x in change.granted] == [(1, "b", 2)]
    last = [g.leave("a"), g.leave("b")][1]
    assert len(last.revoked) == 2
    assert g.assignment() == {}


@given(st.integers(1, 6), st.lists(st.integers(-20, 20), max_size=40))
def test_shares_are_what_a_look_at_all_members_gives(partitions, changes):
    """Though those beyond the partitions are not looked at."""
    g, _ = group(partitions)
    members: list[str] = []
    wanted: dict[int, str] = {}
    for number, change in enumerate(changes):
        if change >= 0:
            members.append(f"m{number}")
            g.join(members[-1])
        elif members:
            g.leave(members.pop(change % len(members)))
        wanted = assign(partitions, members, wanted)
        assert g.assignment() == wanted
        assert {m: [x.partition for x in g.leases(m)] for m in members} == {
            m: [p for p, owner in g.assignment().items() if owner == m] for m in members
        }


def test_many_who_come_and_go_at_once_are_shared_out_once(monkeypatch):
    looked_at = []

    def counted(partitions, members, current):
        looked_at.append(len(members))
        return assign(partitions, members, current)

    monkeypatch.setattr("queues.log.groups.assign", counted)
    g, _ = group(3)
    names = [f"m{number}" for number in range(1_000)]
    for name in names:
        g.enter(name)
    g.rebalance()
    assert looked_at == [3]
    for name in names[:990]:
        g.drop(name)
    change = g.rebalance()
    assert looked_at == [3, 3]
    assert [lease.member for lease in change.granted] == names[990:993]
    g.join("late")
    g.leave(names[-1])
    assert looked_at == [3, 3]


def test_the_first_member_says_where_a_group_starts_before_anything_is_shared_out():
    starts = iter([7, 8])
    g, saved = group(2, start=lambda partition: next(starts))
    g.enter("a")
    g.enter("b")
    assert saved == [(0, 7), (1, 8)]
    assert [lease.position for lease in g.rebalance().granted] == [7, 8]


# Offsets.


def test_commit_is_the_settled_prefix():
    g, saved = group(1)
    (lease,) = g.join("a").granted
    lease.delivered(range(5))
    assert lease.ack([2]) is Settled.PENDING
    assert lease.ack([0]) is Settled.COMMITTED
    assert g.committed(0) == 1
    assert lease.ack([1]) is Settled.COMMITTED
    assert g.committed(0) == 3
    assert lease.in_flight == 2
    lease.ack([4])
    lease.ack([3])
    assert saved == [(0, 0), (0, 1), (0, 3), (0, 5)]


def test_holes_in_the_log_are_no_obstacle():
    g, _ = group(1)
    (lease,) = g.join("a").granted
    lease.delivered([3, 7, 20])
    lease.ack([3])
    assert g.committed(0) == 7
    lease.ack([7])
    lease.ack([20])
    assert (g.committed(0), lease.position) == (21, 21)


def test_a_moved_partition_goes_on_at_the_commit():
    g, _ = group(1)
    (lease,) = g.join("a").granted
    lease.delivered(range(10))
    for offset in (0, 1, 2, 5):
        lease.ack([offset])
    g.join("b")
    (granted,) = g.leave("a").granted
    assert (granted.member, granted.position) == ("b", 3)


def test_late_acks_of_a_lost_partition_change_nothing():
    g, saved = group(1)
    (lease,) = g.join("a").granted
    g.join("b")
    lease.delivered(range(3))
    g.leave("a")
    before = list(saved)
    assert lease.ack([0]) is Settled.STALE
    assert lease.requeue(0) is Settled.STALE
    assert saved == before
    with pytest.raises(LogError, match="no longer belongs"):
        lease.delivered([3])


def test_an_unmoved_partition_keeps_what_is_in_flight():
    g, _ = group(2)
    g.join("a")
    (lease,) = [x for x in g.leases("a") if x.partition == 0]
    lease.delivered(range(4))
    g.join("b")
    assert lease.is_active
    lease.ack([0])
    assert g.committed(0) == 1


def test_a_resumed_group_starts_at_its_commit():
    g, saved = group(2, committed={0: 17})
    granted = g.join("a").granted
    assert [lease.position for lease in granted] == [17, 0]
    assert saved == [(1, 0)]


def test_a_group_that_began_at_the_end_does_not_skip_after_a_rebalance():
    end = [100]
    g, saved = group(1, start=lambda _: end[0])
    g.join("a")
    end[0] = 150
    g.leave("a")
    (lease,) = g.join("b").granted
    assert lease.position == 100
    assert saved == [(0, 100)]


def test_automatic_commit_on_delivery():
    g, saved = group(1, mode=CommitMode.ON_DELIVERY)
    (lease,) = g.join("a").granted
    lease.delivered([0, 1, 5])
    assert saved == [(0, 0), (0, 6)]
    assert lease.in_flight == 0
    assert lease.ack([5]) is Settled.PENDING
    (moved,) = [g.join("b"), g.leave("a")][1].granted
    assert moved.position == 6


def test_a_record_given_back_holds_the_commit_until_it_is_settled():
    g, _ = group(1)
    (lease,) = g.join("a").granted
    lease.delivered(range(3))
    lease.requeue(1)
    lease.requeue(0)
    lease.requeue(0)
    assert lease.again == {0, 1}
    lease.ack([2])
    assert g.committed(0) == 0
    lease.delivered([0, 1])
    assert lease.again == set()
    assert lease.position == 3
    lease.ack([0])
    lease.ack([1])
    assert g.committed(0) == 3


def test_acks_of_what_was_never_delivered_change_nothing():
    g, saved = group(1)
    (lease,) = g.join("a").granted
    lease.delivered(range(2))
    assert lease.ack([7]) is Settled.PENDING
    lease.ack([0])
    assert lease.ack([0]) is Settled.PENDING
    assert saved[-1] == (0, 1)


def test_reset_moves_back_and_forgets_what_is_in_flight():
    g, saved = group(1)
    (lease,) = g.join("a").granted
    lease.delivered(range(5))
    for offset in range(5):
        lease.ack([offset])
    change = g.reset(0, 2)
    assert change.revoked == (lease,)
    assert change.granted[0].position == 2
    assert saved[-1] == (0, 2)
    assert lease.ack([4]) is Settled.STALE


def test_reset_of_an_empty_group_counts_for_the_next_member():
    g, _ = group(2)
    g.reset(1, 40)
    assert [lease.position for lease in g.join("a").granted] == [0, 40]
    with pytest.raises(LogError, match="no partition"):
        g.reset(2, 0)


class GroupMachine(RuleBasedStateMachine):
    """R-25 in small: members come, die, deliver and ack; the broker dies too."""

    @initialize(partitions=st.integers(1, 6))
    def start(self, partitions: int) -> None:
        self.stored: dict[int, int] = {}
        self.processed: dict[int, set[int]] = {p: set() for p in range(partitions)}
        self.names = 0
        self.rng = random.Random(partitions)
        self.partitions = partitions
        self.boot()

    def boot(self) -> None:
        self.group: Group[str] = Group(
            self.partitions, start=lambda _: 0, save=self.save, committed=self.stored
        )
        self.flying: dict[int, list[int]] = {}

    def save(self, partition: int, offset: int) -> None:
        assert offset >= self.stored.get(partition, 0), "a commit went back"
        assert set(range(offset)) <= self.processed[partition], "a commit passed a record"
        self.stored[partition] = offset

    @rule()
    def join(self) -> None:
        self.names += 1
        self.forget(self.group.join(f"m{self.names}").revoked)

    @precondition(lambda self: self.group.members)
    @rule(which=st.integers(0, 100))
    def leave(self, which: int) -> None:
        members = self.group.members
        self.forget(self.group.leave(members[which % len(members)]).revoked)

    @rule(changes=st.lists(st.integers(-20, 20), min_size=1, max_size=12))
    def come_and_go_at_once(self, changes: list[int]) -> None:
        """Below zero one leaves; nothing is shared out in between."""
        for change in changes:
            members = self.group.members
            if change >= 0:
                self.names += 1
                self.group.enter(f"m{self.names}")
            elif members:
                leaver = members[change % len(members)]
                held = self.group.leases(leaver)
                assert list(self.group.drop(leaver)) == held
                assert not any(lease.is_active for lease in held)
                assert leaver not in self.group.assignment().values()
                self.forget(held)
        self.forget(self.group.rebalance().revoked)

    def forget(self, revoked) -> None:
        for lease in revoked:
            self.flying.pop(lease.partition, None)

    @rule(partition=st.integers(0, 5), count=st.integers(1, 5))
    def deliver(self, partition: int, count: int) -> None:
        lease = self.group.lease(partition)
        if lease is not None:
            offsets = range(lease.position, lease.position + count)
            lease.delivered(offsets)
            self.flying.setdefault(partition, []).extend(offsets)

    @rule(partition=st.integers(0, 5), count=st.integers(1, 5))
    def ack(self, partition: int, count: int) -> None:
        flying = self.flying.get(partition, [])
        lease = self.group.lease(partition)
        for _ in range(min(count, len(flying))):
            offset = flying.pop(self.rng.randrange(len(flying)))
            self.processed[partition].add(offset)
            assert lease is not None
            lease.ack([offset])

    @rule()
    def broker_dies(self) -> None:
        self.boot()

    @invariant()
    def every_partition_has_one_owner(self) -> None:
        members = self.group.members
        if members:
            assert sorted(self.group.assignment()) == list(range(self.partitions))
            loads = [len(self.group.leases(member)) for member in members]
            assert max(loads) - min(loads) <= 1
        else:
            assert self.group.assignment() == {}


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
