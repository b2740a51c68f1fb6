"""Whose password is looked at next, and for whom there is no place."""

from __future__ import annotations

import pytest

from leveret.broker.access import lines
from leveret.broker.access.lines import Job, Lane, Lines
from leveret.broker.access.throttle import WINDOW_SECONDS
from leveret.model.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def waiting(clock: ManualClock) -> Lines:
    return Lines(clock.monotonic)


def _join(waiting: Lines, lane: Lane, *owners: str) -> list[Job]:
    jobs = [Job(lane, owner) for owner in owners]
    for job in jobs:
        waiting.join(job)
    return jobs


def _order(waiting: Lines, may_make: bool = True) -> list[str]:
    order = []
    while (job := waiting.next(may_make)) is not None:
        order.append(job.whose)
    return order


def test_known_users_come_first_one_after_the_other(waiting: Lines) -> None:
    _join(waiting, Lane.STRANGER, "10.0.0.1", "10.0.1.1")
    _join(waiting, Lane.MAKING, "admin")
    _join(waiting, Lane.KNOWN, "ann", "ann", "ann", "bob")
    assert _order(waiting)[:5] == ["ann", "bob", "ann", "ann", "admin"]


def test_new_passwords_are_taken_when_they_may_one_user_after_the_other(waiting: Lines) -> None:
    _join(waiting, Lane.MAKING, "one", "one", "one", "two")
    _join(waiting, Lane.STRANGER, "10.0.0.1")
    assert _order(waiting, may_make=False) == ["10.0.0.1"]
    assert _order(waiting) == ["one", "two", "one", "one"]


def test_job_of_one_owner_that_came_first_is_done_first(waiting: Lines) -> None:
    jobs = _join(waiting, Lane.STRANGER, "10.0.0.1", "10.0.0.1", "10.0.0.1")
    assert [waiting.next(True) for _ in jobs] == jobs


def test_newcomer_waits_for_nobody_who_has_guessed(waiting: Lines) -> None:
    guessers = [f"10.{number // 200}.{number % 200}.1" for number in range(400)]
    for source in guessers:
        waiting.failed(source)
    _join(waiting, Lane.STRANGER, *guessers[:200], "192.168.0.1", *guessers[200:])
    assert _order(waiting)[0] == "192.168.0.1"


def test_failures_count_for_the_network_and_then_for_the_source(waiting: Lines) -> None:
    for source in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.1.1"):
        waiting.failed(source)
    _join(waiting, Lane.STRANGER, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.1.1", "10.0.2.1")
    assert _order(waiting) == ["10.0.2.1", "10.0.1.1", "10.0.0.3", "10.0.0.2", "10.0.0.1"]


def test_failures_are_forgotten_after_a_minute(waiting: Lines, clock: ManualClock) -> None:
    waiting.failed("10.0.0.1")
    clock.advance(WINDOW_SECONDS - 1)
    waiting.failed("10.0.1.1")
    _join(waiting, Lane.STRANGER, "10.0.0.1", "10.0.1.1")
    clock.advance(1)
    assert _order(waiting) == ["10.0.0.1", "10.0.1.1"]


def test_network_of_many_guessers_is_one_among_others(waiting: Lines) -> None:
    """None has failed yet: after its first guess the network waits for everybody else."""
    _join(waiting, Lane.STRANGER, *(f"10.0.0.{number}" for number in range(200)))
    _join(waiting, Lane.STRANGER, "10.0.1.1", "10.0.2.1")
    first = []
    for _ in range(4):
        job = waiting.next(True)
        assert job is not None
        waiting.failed(job.whose)
        first.append(job.whose)
    assert {"10.0.1.1", "10.0.2.1"} < set(first)


def test_crowd_that_comes_at_once_is_served_from_both_ends(waiting: Lines) -> None:
    sources = [f"10.0.{number}.1" for number in range(6)]
    _join(waiting, Lane.STRANGER, *sources)
    assert [sources.index(source) for source in _order(waiting)] == [5, 0, 4, 1, 3, 2]


def test_source_with_much_waits_for_those_with_little(waiting: Lines) -> None:
    _join(waiting, Lane.STRANGER, *["10.0.0.1"] * 10, "10.0.1.1", "10.0.2.1")
    assert {"10.0.1.1", "10.0.2.1"} < set(_order(waiting)[:4])


def test_places_are_for_strangers(waiting: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_STRANGERS", 2)
    _join(waiting, Lane.KNOWN, *"abcdef")
    _join(waiting, Lane.MAKING, *"abcdef")
    _join(waiting, Lane.STRANGER, "10.0.0.1", "10.0.1.1")
    assert not waiting.is_crowded
    _join(waiting, Lane.STRANGER, "10.0.2.1")
    assert waiting.is_crowded
    waiting.leave(waiting.last_stranger())
    assert not waiting.is_crowded
    _order(waiting)
    _join(waiting, Lane.STRANGER, "10.0.0.1", "10.0.1.1")
    assert not waiting.is_crowded


def test_beside_guessers_there_are_fewer_places(
    waiting: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_BESIDE_GUESSERS", 2)
    _join(waiting, Lane.STRANGER, "10.0.0.1", "10.0.1.1", "10.0.2.1")
    for _ in range(lines.LOOKED_BACK // 2):
        waiting.failed("10.9.9.9")
    assert not waiting.is_crowded
    waiting.failed("10.9.9.9")
    assert waiting.is_crowded
    for _ in range(lines.LOOKED_BACK // 2):
        waiting.was_right()
    assert not waiting.is_crowded


def test_who_has_failed_most_has_to_go_then_who_has_most_then_the_first(waiting: Lines) -> None:
    waiting.failed("10.0.3.1")
    jobs = _join(waiting, Lane.STRANGER, "10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.2.1", "10.0.3.1")
    went = []
    for _ in jobs:
        went.append(waiting.last_stranger())
        waiting.leave(went[-1])
    assert went == [jobs[4], jobs[2], jobs[0], jobs[1], jobs[3]]
    assert waiting.next(True) is None
