"""What a group member is told, given what it was told before and what it has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leveret.queues.log.group_coordinator import GroupCoordinator
from leveret.queues.log.rebalance_notifications import RebalanceNotifier


class Group:
    """Two members, of which A is notified."""

    def __init__(self, partitions: int = 3, timeout_ms: int = 1_000) -> None:
        self.notifier = RebalanceNotifier("log", "G", timeout_ms)
        self.releasing: list[Any] = []
        self.coordinator: GroupCoordinator[Any] = GroupCoordinator(
            partitions,
            start=lambda partition: 0,
            save=lambda partition, offset: None,
            must_release=lambda held: held.member == "A" and self.notifier.must_release(held),
        )

    def told(self) -> list[tuple[str, list[int]]]:
        """Deliver the notifications that are due."""
        owned = self.coordinator.assignments("A")
        entries = self.notifier.notifications("A", self.coordinator.generation, owned)  # type: ignore[arg-type]
        self.releasing += [held for entry in entries for held in entry.releasing]
        return [
            (entry.message.headers()["x-rebalance"], json.loads(entry.message.body)["partitions"])
            for entry in entries
        ]

    def release(self) -> None:
        self.notifier.on_released(self.releasing)
        self.coordinator.release(self.releasing)
        self.coordinator.rebalance()


@pytest.fixture
def group() -> Group:
    group = Group()
    group.coordinator.join("A")
    return group


def test_member_is_told_once(group):
    assert group.told() == [("assigned", [0, 1, 2])]
    assert group.told() == []
    group.coordinator.join("b")
    assert group.told() == [("revoked", [2])]
    assert group.told() == []
    group.release()
    assert group.told() == []
    group.coordinator.leave("b")
    assert group.told() == [("assigned", [2])]


def test_partition_that_the_member_never_heard_of_moves_at_once(group):
    change = group.coordinator.join("b")
    assert [held.partition for held in change.revoked] == [2] and not change.releasing
    assert group.told() == [("assigned", [0, 1])]


def test_changes_while_the_member_does_not_read_become_one_notification(group):
    """So that a member that never reads costs no memory."""
    group.told()
    for offset in range(100):
        group.coordinator.reset(1, offset)
    group.coordinator.join("b")
    assert len(group.notifier._told) == 3
    assert group.told() == [("lost", [1]), ("revoked", [2]), ("assigned", [1])]


def test_revoked_partition_that_was_taken_away_is_lost(group):
    group.told()
    (held,) = group.coordinator.join("b").releasing
    assert group.told() == [("revoked", [2])]
    group.coordinator.release([held])
    group.coordinator.rebalance()
    assert group.told() == [("lost", [2])]
    group.notifier.on_released([held])  # settled too late
    assert group.told() == []


def test_without_time_to_release_a_partition_is_lost_at_once():
    group = Group(timeout_ms=0)
    group.coordinator.join("A")
    group.told()
    assert group.coordinator.join("b").revoked
    assert group.told() == [("lost", [2])]
