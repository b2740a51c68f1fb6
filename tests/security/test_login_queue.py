"""The login queue: which job is next, and which is refused when the queue is full."""

from __future__ import annotations

import pytest

from leveret.broker.access import login_queue
from leveret.broker.access.login_queue import Job, JobKind, LoginQueue
from leveret.broker.access.login_rate_limit import WINDOW_SECONDS
from leveret.model.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> LoginQueue:
    return LoginQueue(clock.monotonic)


def _add(queue: LoginQueue, kind: JobKind, *owners: str) -> list[Job]:
    jobs = [Job(kind, owner) for owner in owners]
    for job in jobs:
        queue.add(job)
    return jobs


def _order(queue: LoginQueue, can_hash_new: bool = True) -> list[str]:
    order = []
    while (job := queue.pop(can_hash_new)) is not None:
        order.append(job.owner)
    return order


def test_known_users_come_first_round_robin(queue: LoginQueue) -> None:
    _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.0.1", "10.0.1.1")
    _add(queue, JobKind.NEW_HASH, "admin")
    _add(queue, JobKind.KNOWN_USER, "ann", "ann", "ann", "bob")
    assert _order(queue)[:5] == ["ann", "bob", "ann", "ann", "admin"]


def test_new_hashes_are_taken_when_allowed_round_robin(
    queue: LoginQueue,
) -> None:
    _add(queue, JobKind.NEW_HASH, "one", "one", "one", "two")
    _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.0.1")
    assert _order(queue, can_hash_new=False) == ["10.0.0.1"]
    assert _order(queue) == ["one", "two", "one", "one"]


def test_jobs_of_one_owner_are_first_in_first_out(queue: LoginQueue) -> None:
    jobs = _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.0.1", "10.0.0.1", "10.0.0.1")
    assert [queue.pop(True) for _ in jobs] == jobs


def test_new_client_goes_before_sources_with_failures(queue: LoginQueue) -> None:
    guessers = [f"10.{number // 200}.{number % 200}.1" for number in range(400)]
    for source in guessers:
        queue.record_failure(source)
    _add(queue, JobKind.UNKNOWN_CLIENT, *guessers[:200], "192.168.0.1", *guessers[200:])
    assert _order(queue)[0] == "192.168.0.1"


def test_failures_count_by_network_then_by_source(queue: LoginQueue) -> None:
    for source in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.1.1"):
        queue.record_failure(source)
    _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.1.1", "10.0.2.1")
    assert _order(queue) == ["10.0.2.1", "10.0.1.1", "10.0.0.3", "10.0.0.2", "10.0.0.1"]


def test_failures_expire_after_a_minute(queue: LoginQueue, clock: ManualClock) -> None:
    queue.record_failure("10.0.0.1")
    clock.advance(WINDOW_SECONDS - 1)
    queue.record_failure("10.0.1.1")
    _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.0.1", "10.0.1.1")
    clock.advance(1)
    assert _order(queue) == ["10.0.0.1", "10.0.1.1"]


def test_network_with_many_guessers_counts_as_one(queue: LoginQueue) -> None:
    """No source has failed yet; after its first failure the network waits for all others."""
    _add(queue, JobKind.UNKNOWN_CLIENT, *(f"10.0.0.{number}" for number in range(200)))
    _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.1.1", "10.0.2.1")
    first = []
    for _ in range(4):
        job = queue.pop(True)
        assert job is not None
        queue.record_failure(job.owner)
        first.append(job.owner)
    assert {"10.0.1.1", "10.0.2.1"} < set(first)


def test_burst_is_served_from_both_ends(queue: LoginQueue) -> None:
    sources = [f"10.0.{number}.1" for number in range(6)]
    _add(queue, JobKind.UNKNOWN_CLIENT, *sources)
    assert [sources.index(source) for source in _order(queue)] == [5, 0, 4, 1, 3, 2]


def test_source_with_many_jobs_does_not_delay_others(queue: LoginQueue) -> None:
    _add(queue, JobKind.UNKNOWN_CLIENT, *["10.0.0.1"] * 10, "10.0.1.1", "10.0.2.1")
    assert {"10.0.1.1", "10.0.2.1"} < set(_order(queue)[:4])


def test_limit_counts_only_unknown_clients(
    queue: LoginQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_queue, "MAX_UNKNOWN_CLIENTS", 2)
    _add(queue, JobKind.KNOWN_USER, *"abcdef")
    _add(queue, JobKind.NEW_HASH, *"abcdef")
    _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.0.1", "10.0.1.1")
    assert not queue.is_full
    _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.2.1")
    assert queue.is_full
    queue.remove(queue.eviction_candidate())
    assert not queue.is_full
    _order(queue)
    _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.0.1", "10.0.1.1")
    assert not queue.is_full


def test_limit_is_lower_under_attack(queue: LoginQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_queue, "MAX_UNDER_ATTACK", 2)
    _add(queue, JobKind.UNKNOWN_CLIENT, "10.0.0.1", "10.0.1.1", "10.0.2.1")
    for _ in range(login_queue.RESULTS_REMEMBERED // 2):
        queue.record_failure("10.9.9.9")
    assert not queue.is_full
    queue.record_failure("10.9.9.9")
    assert queue.is_full
    for _ in range(login_queue.RESULTS_REMEMBERED // 2):
        queue.record_success()
    assert not queue.is_full


def test_eviction_order_is_failures_then_queued_jobs_then_age(
    queue: LoginQueue,
) -> None:
    queue.record_failure("10.0.3.1")
    jobs = _add(
        queue, JobKind.UNKNOWN_CLIENT, "10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.2.1", "10.0.3.1"
    )
    evicted = []
    for _ in jobs:
        evicted.append(queue.eviction_candidate())
        queue.remove(evicted[-1])
    assert evicted == [jobs[4], jobs[2], jobs[0], jobs[1], jobs[3]]
    assert queue.pop(True) is None
