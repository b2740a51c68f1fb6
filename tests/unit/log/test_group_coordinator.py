import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leveret.queues.log.files import LogError
from leveret.queues.log.group_coordinator import AckResult, CommitMode, GroupCoordinator, assign


def group(partitions: int = 3, **options) -> tuple[GroupCoordinator[str], list[tuple[int, int]]]:
    saved: list[tuple[int, int]] = []
    options.setdefault("start", lambda partition: 0)
    return GroupCoordinator(partitions, save=lambda p, o: saved.append((p, o)), **options), saved


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
def test_join_moves_only_partitions_of_the_new_member(partitions, members, newcomer):
    before = assign(partitions, members, {})
    after = assign(partitions, [*members, newcomer], before)
    moved = [p for p in range(partitions) if before[p] != after[p]]
    assert all(after[p] == newcomer for p in moved)
    assert len(moved) == partitions // (len(members) + 1)


@given(st.integers(0, 40), members_lists.filter(lambda m: len(m) > 1), st.data())
def test_leave_moves_only_partitions_of_the_old_member(partitions, members, data):
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
    assert {name: len(g.assignments(name)) for name in "abcd"} == {"a": 1, "b": 1, "c": 1, "d": 0}
    g.leave("b")
    assert {name: len(g.assignments(name)) for name in "acd"} == {"a": 1, "c": 1, "d": 1}


def test_generation_increases_with_every_change():
    g, _ = group(2)
    generations = [g.join("a").generation, g.join("b").generation, g.leave("a").generation]
    assert generations == [1, 2, 3]
    assert g.join("b").generation == 3
    assert g.leave("unknown").generation == 3


def test_rebalance_returns_the_moved_partitions():
    g, _ = group(2)
    assert [assignment.partition for assignment in g.join("a").granted] == [0, 1]
    change = g.join("b")
    assert [(x.partition, x.member, x.is_active) for x in change.revoked] == [(1, "a", False)]
    assert [(x.partition, x.member, x.generation) for x in change.granted] == [(1, "b", 2)]
    last = [g.leave("a"), g.leave("b")][1]
    assert len(last.revoked) == 2
    assert g.owners() == {}


@given(st.integers(1, 6), st.lists(st.integers(-20, 20), max_size=40))
def test_eligible_members_give_the_same_assignment_as_all_members(partitions, changes):
    """Members beyond the number of partitions do not matter."""
    g, _ = group(partitions)
    members: list[str] = []
    expected: dict[int, str] = {}
    for number, change in enumerate(changes):
        if change >= 0:
            members.append(f"m{number}")
            g.join(members[-1])
        elif members:
            g.leave(members.pop(change % len(members)))
        expected = assign(partitions, members, expected)
        assert g.owners() == expected
        assert {m: [x.partition for x in g.assignments(m)] for m in members} == {
            m: [p for p, owner in g.owners().items() if owner == m] for m in members
        }


def test_many_joins_and_leaves_need_one_rebalance(monkeypatch):
    member_counts = []

    def counted(partitions, members, current):
        member_counts.append(len(members))
        return assign(partitions, members, current)

    monkeypatch.setattr("leveret.queues.log.group_coordinator.assign", counted)
    g, _ = group(3)
    names = [f"m{number}" for number in range(1_000)]
    for name in names:
        g.add_member(name)
    g.rebalance()
    assert member_counts == [3]
    for name in names[:990]:
        g.remove_member(name)
    change = g.rebalance()
    assert member_counts == [3, 3]
    assert [assignment.member for assignment in change.granted] == names[990:993]
    g.join("late")
    g.leave(names[-1])
    assert member_counts == [3, 3]


def test_first_member_sets_start_offsets_before_the_rebalance():
    starts = iter([7, 8])
    g, saved = group(2, start=lambda partition: next(starts))
    g.add_member("a")
    g.add_member("b")
    assert saved == [(0, 7), (1, 8)]
    assert [assignment.position for assignment in g.rebalance().granted] == [7, 8]


# Offsets.


def test_commit_covers_the_acked_prefix():
    g, saved = group(1)
    (assignment,) = g.join("a").granted
    assignment.delivered(range(5))
    assert assignment.ack([2]) is AckResult.PENDING
    assert assignment.ack([0]) is AckResult.COMMITTED
    assert g.committed(0) == 1
    assert assignment.ack([1]) is AckResult.COMMITTED
    assert g.committed(0) == 3
    assert assignment.in_flight == 2
    assignment.ack([4])
    assignment.ack([3])
    assert saved == [(0, 0), (0, 1), (0, 3), (0, 5)]


def test_holes_in_the_log_do_not_block_commits():
    g, _ = group(1)
    (assignment,) = g.join("a").granted
    assignment.delivered([3, 7, 20])
    assignment.ack([3])
    assert g.committed(0) == 7
    assignment.ack([7])
    assignment.ack([20])
    assert (g.committed(0), assignment.position) == (21, 21)


def test_moved_partition_continues_at_the_committed_offset():
    g, _ = group(1)
    (assignment,) = g.join("a").granted
    assignment.delivered(range(10))
    for offset in (0, 1, 2, 5):
        assignment.ack([offset])
    g.join("b")
    (granted,) = g.leave("a").granted
    assert (granted.member, granted.position) == ("b", 3)


def test_acks_of_a_revoked_assignment_are_stale():
    g, saved = group(1)
    (assignment,) = g.join("a").granted
    g.join("b")
    assignment.delivered(range(3))
    g.leave("a")
    before = list(saved)
    assert assignment.ack([0]) is AckResult.STALE
    assert assignment.requeue(0) is AckResult.STALE
    assert saved == before
    with pytest.raises(LogError, match="no longer belongs"):
        assignment.delivered([3])


def test_partition_that_stays_keeps_its_records_in_flight():
    g, _ = group(2)
    g.join("a")
    (assignment,) = [x for x in g.assignments("a") if x.partition == 0]
    assignment.delivered(range(4))
    g.join("b")
    assert assignment.is_active
    assignment.ack([0])
    assert g.committed(0) == 1


def test_recovered_group_starts_at_its_committed_offsets():
    g, saved = group(2, committed={0: 17})
    granted = g.join("a").granted
    assert [assignment.position for assignment in granted] == [17, 0]
    assert saved == [(1, 0)]


def test_group_that_started_at_the_end_skips_nothing_after_a_rebalance():
    end = [100]
    g, saved = group(1, start=lambda _: end[0])
    g.join("a")
    end[0] = 150
    g.leave("a")
    (assignment,) = g.join("b").granted
    assert assignment.position == 100
    assert saved == [(0, 100)]


def test_commit_on_delivery():
    g, saved = group(1, mode=CommitMode.ON_DELIVERY)
    (assignment,) = g.join("a").granted
    assignment.delivered([0, 1, 5])
    assert saved == [(0, 0), (0, 6)]
    assert assignment.in_flight == 0
    assert assignment.ack([5]) is AckResult.PENDING
    (moved,) = [g.join("b"), g.leave("a")][1].granted
    assert moved.position == 6


def test_requeued_record_blocks_the_commit_until_it_is_acked():
    g, _ = group(1)
    (assignment,) = g.join("a").granted
    assignment.delivered(range(3))
    assignment.requeue(1)
    assignment.requeue(0)
    assignment.requeue(0)
    assert assignment.requeued == {0, 1}
    assignment.ack([2])
    assert g.committed(0) == 0
    assignment.delivered([0, 1])
    assert assignment.requeued == set()
    assert assignment.position == 3
    assignment.ack([0])
    assignment.ack([1])
    assert g.committed(0) == 3


def test_acks_of_undelivered_records_are_ignored():
    g, saved = group(1)
    (assignment,) = g.join("a").granted
    assignment.delivered(range(2))
    assert assignment.ack([7]) is AckResult.PENDING
    assignment.ack([0])
    assert assignment.ack([0]) is AckResult.PENDING
    assert saved[-1] == (0, 1)


def test_reset_moves_back_and_forgets_records_in_flight():
    g, saved = group(1)
    (assignment,) = g.join("a").granted
    assignment.delivered(range(5))
    for offset in range(5):
        assignment.ack([offset])
    change = g.reset(0, 2)
    assert change.revoked == (assignment,)
    assert change.granted[0].position == 2
    assert saved[-1] == (0, 2)
    assert assignment.ack([4]) is AckResult.STALE


def test_reset_of_an_empty_group_applies_to_the_next_member():
    g, _ = group(2)
    g.reset(1, 40)
    assert [assignment.position for assignment in g.join("a").granted] == [0, 40]
    with pytest.raises(LogError, match="no partition"):
        g.reset(2, 0)


# Release.


def releasing_group(partitions: int = 2) -> GroupCoordinator[str]:
    return group(partitions, must_release=lambda held: held.member.isupper())[0]


def test_partition_moves_when_its_member_has_released_it():
    g = releasing_group()
    g.join("A")
    g.assignments("A")[1].delivered([0, 1, 2])
    change = g.join("b")
    (held,) = change.releasing
    assert (held.partition, change.revoked, change.granted) == (1, (), ())
    assert g.owners() == {0: "A", 1: "A"} and not g.rebalance()
    held.ack([0, 1])
    g.release([held])
    assert not held.is_active and held.is_fenced and held.ack([2]) is AckResult.STALE
    change = g.rebalance()
    assert [(x.partition, x.member, x.position) for x in change.granted] == [(1, "b", 2)]
    assert change.generation == 3


def test_released_partition_returns_if_the_other_member_has_left():
    g = releasing_group()
    g.join("A")
    (held,) = g.join("b").releasing
    assert not g.leave("b")
    g.release([held])
    (granted,) = g.rebalance().granted
    assert (granted.partition, granted.member) == (1, "A") and granted is not held


def test_member_that_leaves_releases_everything():
    g = releasing_group()
    g.join("A")
    (held,) = g.join("b").releasing
    change = g.leave("A")
    assert len(change.revoked) == 2 and not held.is_active
    assert {x.partition: x.member for x in change.granted} == {0: "b", 1: "b"}
    g.release([held])  # too late, without effect
    assert g.owners() == {0: "b", 1: "b"} and not g.rebalance()


def test_reset_of_a_partition_that_is_being_released_revokes_it():
    g = releasing_group()
    g.join("A")
    (held,) = g.join("b").releasing
    assert g.reset(1, 7).revoked == (held,)
    (granted,) = g.rebalance().granted
    assert (granted.member, granted.position) == ("b", 7)


class GroupMachine(RuleBasedStateMachine):
    """A small form of R-25: members join, leave, deliver and ack; the broker crashes."""

    @initialize(partitions=st.integers(1, 6))
    def start(self, partitions: int) -> None:
        self.stored: dict[int, int] = {}
        self.processed: dict[int, set[int]] = {p: set() for p in range(partitions)}
        self.names = 0
        self.rng = random.Random(partitions)
        self.partitions = partitions
        self.boot()

    def boot(self) -> None:
        self.group: GroupCoordinator[str] = GroupCoordinator(
            self.partitions,
            start=lambda _: 0,
            save=self.save,
            committed=self.stored,
            must_release=lambda held: int(held.member[1:]) % 2 == 0,
        )
        self.flying: dict[int, list[int]] = {}

    def save(self, partition: int, offset: int) -> None:
        assert offset >= self.stored.get(partition, 0), "a commit moved back"
        assert set(range(offset)) <= self.processed[partition], "a commit skipped a record"
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
    def join_and_leave_without_rebalance(self, changes: list[int]) -> None:
        """A negative number is a leave; the rebalance comes at the end."""
        for change in changes:
            members = self.group.members
            if change >= 0:
                self.names += 1
                self.group.add_member(f"m{self.names}")
            elif members:
                leaver = members[change % len(members)]
                revoked = self.group.assignments(leaver)
                assert list(self.group.remove_member(leaver)) == revoked
                assert not any(assignment.is_active for assignment in revoked)
                assert leaver not in self.group.owners().values()
                self.forget(revoked)
        self.forget(self.group.rebalance().revoked)

    def forget(self, revoked) -> None:
        for assignment in revoked:
            self.flying.pop(assignment.partition, None)

    @rule(partition=st.integers(0, 5), count=st.integers(1, 5))
    def deliver(self, partition: int, count: int) -> None:
        assignment = self.group.assignment(partition)
        if assignment is not None and not assignment.is_releasing:
            offsets = range(assignment.position, assignment.position + count)
            assignment.delivered(offsets)
            self.flying.setdefault(partition, []).extend(offsets)

    @rule(partition=st.integers(0, 5), count=st.integers(1, 5))
    def ack(self, partition: int, count: int) -> None:
        flying = self.flying.get(partition, [])
        assignment = self.group.assignment(partition)
        for _ in range(min(count, len(flying))):
            offset = flying.pop(self.rng.randrange(len(flying)))
            self.processed[partition].add(offset)
            assert assignment is not None
            assignment.ack([offset])

    @rule(partition=st.integers(0, 5))
    def release(self, partition: int) -> None:
        assignment = self.group.assignment(partition)
        if assignment is not None and assignment.is_releasing:
            self.group.release([assignment])
            self.forget([assignment])
            self.forget(self.group.rebalance().revoked)

    @rule()
    def broker_crashes(self) -> None:
        self.boot()

    @invariant()
    def every_partition_has_one_owner(self) -> None:
        members = self.group.members
        if members:
            assert sorted(self.group.owners()) == list(range(self.partitions))
            loads = [len(self.group.assignments(member)) for member in members]
            assert self.is_releasing() or max(loads) - min(loads) <= 1
        else:
            assert self.group.owners() == {}

    def is_releasing(self) -> bool:
        assignments = map(self.group.assignment, range(self.partitions))
        return any(assignment is not None and assignment.is_releasing for assignment in assignments)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
