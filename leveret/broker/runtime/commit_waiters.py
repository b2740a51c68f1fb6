"""Waiting for the disk: publisher confirms, replies and coroutines that wait for a commit.

Batches of the store are numbered and committed in order. A confirm is registered here for the batch
that contains its message, and leaves when that batch is on disk; callbacks run in the order of
their batch numbers.

Event-loop thread only; nothing here outlives the process: after a crash nothing waits any more, and
what was not committed is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from functools import partial
from itertools import groupby
from typing import Protocol

from leveret.broker.runtime.scheduler import LoopScheduler, call_guarded
from leveret.model.message import Message
from leveret.model.run import Run
from leveret.model.store import RequireSync, Store, StoreState
from leveret.queues.port import EnqueueResult

log = logging.getLogger("leveret.broker")

Callback = Callable[[], None]


class CommitOutcome(Enum):
    """What became of a batch. After a full disk, unconfirmed changes join the next batch."""

    COMMITTED = auto()
    FAILED = auto()


class ConfirmWait(Enum):
    """What a publisher confirm waits for."""

    NONE = auto()
    NEW_BATCH = auto()
    KNOWN_BATCH = auto()
    """An earlier confirm of the same channel waits for this batch, or for a later one."""


class ConfirmLedger(Protocol):
    """The publisher confirms of one channel."""

    def accepted(self, batch_number: int, count: int = 1) -> ConfirmWait:
        """The next `count` publishes were enqueued; they wait for this batch (0: for nothing)."""

    def rejected(self) -> None:
        """The next publish was rejected by a queue."""

    def on_committed(self, batch_number: int) -> None: ...

    def on_failed(self, batch_number: int) -> None: ...


class CommitWaiters:
    def __init__(self, store: Store, scheduler: LoopScheduler) -> None:
        self._store = store
        self._scheduler = scheduler
        self._waiting: dict[int, list[tuple[Callback, Callback | None]]] = {}
        """By batch number: what to call when the batch is committed, or has failed."""
        self.last_committed = 0

    def when_committed(
        self, batch_number: int, callback: Callback, on_failed: Callback | None = None
    ) -> None:
        """Call `callback` once all batches up to `batch_number` are on disk, or now if they are.

        If the batch fails, `on_failed` is called instead, or `callback` if there is none.
        """
        if batch_number <= self.last_committed:
            callback()
        else:
            self._store.await_batch()
            self._waiting.setdefault(batch_number, []).append((callback, on_failed))

    def when_durable(
        self, callback: Callback, on_store_failed: Callback, sync: bool = False
    ) -> None:
        """Call `callback` once everything done so far is on disk, in this batch or a later one.

        When a batch fails because the disk is full, its changes join the next batch, and the wait
        goes on. A store that has failed for good calls `on_store_failed`. With `sync` the batch is
        synced even if it contains nothing else that requires it.
        """

        def wait_for_next_batch() -> None:
            if self._store.state is StoreState.FAILED:
                on_store_failed()
            else:
                self.when_durable(callback, on_store_failed, sync)

        if sync:
            self._store.save(RequireSync())
            self._scheduler.schedule()
        self.when_committed(self._store.batch_number, callback, wait_for_next_batch)

    def confirm_when_committed(
        self, ledger: ConfirmLedger, run: Run, results: list[EnqueueResult] | None
    ) -> None:
        """Record publishes of one channel: each is confirmed when it is on disk, if it has to be.

        `results` is None if all were accepted.
        """
        groups: Iterable[tuple[bool | None, int]]
        if results is None and run.is_packed:
            groups = ((run.is_stored and run.persistent, len(run)),)
        else:
            groups = _confirm_groups(run, results)
        for waits, count in groups:
            if waits is None:
                for _ in range(count):
                    ledger.rejected()
                continue
            batch_number = 0
            if waits:  # records of logs may be in a later batch
                store = self._store
                batch_number = store.current_batch_number if results is None else store.batch_number
            if ledger.accepted(batch_number, count) is ConfirmWait.NEW_BATCH:
                on_committed = partial(ledger.on_committed, batch_number)
                on_failed = partial(ledger.on_failed, batch_number)
                if results is not None:  # the batch may be empty, or committed before
                    self.when_committed(batch_number, on_committed, on_failed)
                else:
                    self._waiting.setdefault(batch_number, []).append((on_committed, on_failed))

    async def committed(self, sync: bool = False) -> CommitOutcome:
        """Wait until the batch that contains everything done so far is decided."""
        outcome: asyncio.Future[CommitOutcome] = asyncio.get_running_loop().create_future()

        def decide(decided: CommitOutcome) -> None:
            if not outcome.done():  # the waiting task may have been cancelled
                outcome.set_result(decided)

        if sync:
            self._store.save(RequireSync())
        self._scheduler.schedule()
        self.when_committed(
            self._store.batch_number,
            lambda: decide(CommitOutcome.COMMITTED),
            lambda: decide(CommitOutcome.FAILED),
        )
        return await outcome

    def advance(self, batch_number: int) -> None:
        """This batch is on disk."""
        self.last_committed = max(self.last_committed, batch_number)
        for number in sorted(number for number in self._waiting if number <= batch_number):
            for callback, _ in self._waiting.pop(number):
                try:
                    callback()
                except Exception:
                    log.exception("unexpected error after a commit")

    def fail(self, batch_number: int) -> None:
        """This batch is lost: tell its waiters, which must not wait for ever."""
        self.last_committed = max(self.last_committed, batch_number)
        for number in sorted(number for number in self._waiting if number <= batch_number):
            for callback, on_failed in self._waiting.pop(number):
                call_guarded(on_failed or callback)


def _confirm_groups(
    run: Run, results: list[EnqueueResult] | None
) -> Iterator[tuple[bool | None, int]]:
    """Consecutive messages with equal answers: whether these wait for the disk (None: nacks), and
    their number."""
    accepted = [EnqueueResult.ACCEPTED] * len(run)
    for waits, group in groupby(map(_waits_for_disk, run.messages, results or accepted)):
        yield waits, len(list(group))


def _waits_for_disk(message: Message, result: EnqueueResult) -> bool | None:
    if result is EnqueueResult.REJECTED:
        return None
    is_stored = message.stored and message.scan.persistent
    return is_stored or result is EnqueueResult.ACCEPTED_ON_COMMIT
