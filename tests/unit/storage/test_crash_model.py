"""Random work, with full disks and a crash after every batch, compared with a model.

A batch fails at a random statement of its transaction. In any case, a copy of the files opened at
that moment holds exactly the batches that were reported committed: settled messages are settled,
published ones are there with their content, and a lost batch has left nothing.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from array import array
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.history import EventKind
from leveret.model.store import BatchFailed, LiveMessages, MustNotLose, Snapshot, StoreState
from leveret.queues.storage import sql_store
from tests.contract.stores import DEADLINE, Harness, copy_as_after_crash, memory_disk

QUEUES = (1, 2)


@dataclass
class Model:
    """What is on disk, in the pending batches, and in the memory of the broker."""

    stored: set[tuple[int, int]] = field(default_factory=set)
    settled: set[tuple[int, int]] = field(default_factory=set)
    new: set[tuple[int, int]] = field(default_factory=set)
    must_not_lose: set[tuple[int, int]] = field(default_factory=set)
    newly_settled: set[tuple[int, int]] = field(default_factory=set)
    in_memory: dict[int, list[int]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    bodies: dict[int, bytes] = field(default_factory=dict)

    def committed(self) -> None:
        self.stored |= self.new
        self.settled |= self.newly_settled
        self.new, self.must_not_lose, self.newly_settled = set(), set(), set()

    def failed(self) -> None:
        """New messages are lost; settled events and `MustNotLose` messages are tried again."""
        self.new = set(self.must_not_lose)

    def live(self, queue: int) -> list[int]:
        return sorted(i for at, i in self.stored - self.settled if at == queue)


class StoreWithModel:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._copies = 0
        self.harness = Harness(directory / "data")
        self.model = Model()
        for queue in QUEUES:
            self.harness.declare(queue)

    def publish(self, queues: set[int], body: bytes, must_not_lose: bool) -> None:
        message_id = self.harness.publish(body, queues)
        self.model.bodies[message_id] = body
        positions = {(queue, message_id) for queue in queues}
        self.model.new |= positions
        for queue in queues:
            self.model.in_memory[queue].append(message_id)
        if must_not_lose:
            self.harness.store.save(MustNotLose([message_id]))
            self.model.must_not_lose |= positions

    def settle(self, queue: int, positions: set[int]) -> None:
        message_ids = self.model.in_memory[queue]
        ids = [message_ids[position] for position in positions if position < len(message_ids)]
        self.harness.store.record_many(EventKind.ACKED, queue, ids)
        self.model.newly_settled |= {(queue, i) for i in ids}
        self.model.in_memory[queue] = [i for i in message_ids if i not in ids]

    def snapshot(self, queue: int, trim: bool) -> None:
        """Includes lost messages: the broker still holds them in memory."""
        ids = self.model.in_memory[queue]
        sizes = array("I", [len(self.model.bodies[i]) for i in ids])
        self.harness.store.save(Snapshot(queue, (LiveMessages(array("Q", ids), sizes),), trim))

    async def commit(self, fails_at: int | None) -> None:
        """Commit one batch; its statement number `fails_at` fails with a full disk."""
        before = len(self.harness.outcomes)
        with self._full_disk(fails_at):
            await self.harness.durable()
            for outcome in self.harness.outcomes[before:]:
                (self.model.failed if isinstance(outcome, BatchFailed) else self.model.committed)()
            await self.check()
        before = len(self.harness.outcomes)
        async with asyncio.timeout(DEADLINE):
            while self.harness.store.state is not StoreState.RUNNING:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        if len(self.harness.outcomes) > before:
            self.model.committed()
            await self.check()

    @contextmanager
    def _full_disk(self, fails_at: int | None) -> Any:
        writer = self.harness.sql._writer
        assert writer is not None
        transactor = writer._transactor
        real, left = transactor._execute, fails_at

        def execute(*statement: Any) -> Any:
            nonlocal left
            if left is not None and statement[0] != "ROLLBACK":
                left -= 1
                if left < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return real(*statement)

        with patch.object(transactor, "_execute", execute):
            yield

    async def check(self) -> None:
        """Simulate a crash now, and check the recovered state."""
        copy = self._directory / f"copy{self._copies}"
        self._copies += 1
        copy_as_after_crash(self._directory / "data", copy)
        crashed = Harness(copy)
        assert not crashed.recovered.damaged
        for queue in QUEUES:
            live = self.model.live(queue)
            assert crashed.live(queue) == live
            assert await crashed.bodies(live) == [self.model.bodies[i] for i in live]
        await crashed.close()
        shutil.rmtree(copy)


queues = st.sampled_from(QUEUES)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just(StoreWithModel.publish),
            st.sets(queues, min_size=1),
            st.binary(max_size=20),
            st.booleans(),
        ),
        st.tuples(st.just(StoreWithModel.settle), queues, st.sets(st.integers(0, 5), max_size=3)),
        st.tuples(st.just(StoreWithModel.snapshot), queues, st.booleans()),
        st.tuples(st.just(StoreWithModel.commit), st.none() | st.integers(0, 6)),
    ),
    max_size=25,
)
Step = tuple[Callable[..., Any], Any]


async def run_steps(directory: Path, step_list: list[Step]) -> None:
    subject = StoreWithModel(directory)
    await subject.commit(None)
    for step, *values in step_list:
        awaitable = step(subject, *values)
        if awaitable is not None:
            await awaitable
    await subject.commit(None)
    await subject.harness.close()


@settings(max_examples=30)
@given(steps)
def test_crash_after_any_batch_leaves_the_reported_batches(step_list: list[Step]):
    with (
        tempfile.TemporaryDirectory(dir=memory_disk()) as directory,
        patch.object(sql_store, "RETRY_SECONDS", 0.001),
    ):
        asyncio.run(run_steps(Path(directory), step_list))
