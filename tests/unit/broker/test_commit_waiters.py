"""Commit waiters: outcomes of batches, and failing callbacks."""

from typing import Any, cast

import pytest

from leveret.broker.runtime.commit_waiters import CommitOutcome, CommitWaiters
from leveret.broker.runtime.scheduler import LoopScheduler
from leveret.model.store import StoreState


class FakeStore:
    def __init__(self):
        self.state, self.batch_number, self.saved = StoreState.RUNNING, 1, list[Any]()

    def save(self, row):
        self.saved.append(row)

    def await_batch(self):
        """Nothing is held back."""


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def waiters(store):
    scheduler = LoopScheduler(lambda callback: None, lambda: None, lambda: 0.0)
    return CommitWaiters(cast(Any, store), scheduler)


def test_failing_commit_callback_does_not_stop_the_others(waiters, caplog):
    called: list[int] = []

    def fail():
        raise RuntimeError("planted")

    waiters.when_committed(1, fail)
    waiters.when_committed(1, lambda: called.append(1))
    waiters.when_committed(2, fail, fail)
    waiters.when_committed(2, fail, lambda: called.append(2))
    waiters.advance(1)
    waiters.fail(2)
    assert called == [1, 2]
    assert "planted" in caplog.text


def test_when_durable_waits_for_the_batch_after_a_failed_one(waiters, store):
    called: list[str] = []
    waiters.when_durable(lambda: called.append("durable"), lambda: called.append("failed"))
    store.batch_number = 2
    waiters.fail(1)
    assert called == []
    waiters.advance(2)
    assert called == ["durable"] and store.saved == []


def test_when_durable_reports_a_failed_store_once(waiters, store):
    called: list[str] = []
    waiters.when_durable(
        lambda: called.append("durable"), lambda: called.append("failed"), sync=True
    )
    assert len(store.saved) == 1
    store.state = StoreState.FAILED
    waiters.fail(1)
    waiters.fail(2)
    assert called == ["failed"]


@pytest.mark.parametrize("outcome", CommitOutcome)
async def test_committed_returns_the_outcome_of_the_current_batch(waiters, store, outcome):
    decide = waiters.advance if outcome is CommitOutcome.COMMITTED else waiters.fail
    task = waiters.committed()
    task.send(None)  # runs until it waits
    decide(1)
    with pytest.raises(StopIteration) as ended:
        task.send(None)
    assert ended.value.value is outcome
