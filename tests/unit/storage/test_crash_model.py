"""Random work, full disks in the middle of it, and a crash after every batch, against a model.

A batch fails at a random statement of its transaction. Whatever becomes of it, a copy of the files
opened at that moment holds exactly the batches that were reported committed: what was settled is
settled, what was published is there with its content, and a lost batch has left nothing.
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
from leveret.model.store import Failed, Indispensable, Live, Snapshot, StoreState
from queues.storage import sql_store
from tests.contract.stores import DEADLINE, Harness, copy_as_after_a_crash, quick_disk

QUEUES = (1, 2)


@dataclass
class Model:
    """What is on disk, what the batches under way hold, and what the broker has in memory."""

    stored: set[tuple[int, int]] = field(default_factory=set)
    settled: set[tuple[int, int]] = field(default_factory=set)
    new: set[tuple[int, int]] = field(default_factory=set)
    firm: set[tuple[int, int]] = field(default_factory=set)
    newly_settled: set[tuple[int, int]] = field(default_factory=set)
    held: dict[int, list[int]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    bodies: dict[int, bytes] = field(default_factory=dict)

    def committed(self) -> None:
        self.stored |= self.new
        self.settled |= self.newly_settled
        self.new, self.firm, self.newly_settled = set(), set(), set()

    def failed(self) -> None:
        """New messages are lost; what was settled or is indispensable is tried again."""
        self.new = set(self.firm)

    def live(self, queue: int) -> list[int]:
        return sorted(i for at, i in self.stored - self.settled if at == queue)


class Player:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._copies = 0
        self.harness = Harness(directory / "data")
        self.model = Model()
        for queue in QUEUES:
            self.harness.declare(queue)

    def publish(self, queues: set[int], body: bytes, firm: bool) -> None:
        message_id = self.harness.publish(body, queues)
        self.model.bodies[message_id] = body
        places = {(queue, message_id) for queue in queues}
        self.model.new |= places
        for queue in queues:
            self.model.held[queue].append(message_id)
        if firm:
            self.harness.store.save(Indispensable([message_id]))
            self.model.firm |= places

    def settle(self, queue: int, places: set[int]) -> None:
        held = self.model.held[queue]
        ids = [held[place] for place in places if place < len(held)]
        self.harness.store.record_many(EventKind.ACKED, queue, ids)
        self.model.newly_settled |= {(queue, i) for i in ids}
        self.model.held[queue] = [i for i in held if i not in ids]

    def snapshot(self, queue: int, trim: bool) -> None:
        """The broker does not tell lost messages from others: it holds them in memory."""
        ids = self.model.held[queue]
        sizes = array("I", [len(self.model.bodies[i]) for i in ids])
        self.harness.store.save(Snapshot(queue, (Live(array("Q", ids), sizes),), trim))

    async def commit(self, fails_at: int | None) -> None:
        """One batch; with a number, that statement of it meets a full disk."""
        before = len(self.harness.outcomes)
        with self._full_disk(fails_at):
            await self.harness.durable()
            for outcome in self.harness.outcomes[before:]:
                (self.model.failed if isinstance(outcome, Failed) else self.model.committed)()
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
        """Crash here: what is there afterwards?"""
        copy = self._directory / f"copy{self._copies}"
        self._copies += 1
        copy_as_after_a_crash(self._directory / "data", copy)
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
            st.just(Player.publish),
            st.sets(queues, min_size=1),
            st.binary(max_size=20),
            st.booleans(),
        ),
        st.tuples(st.just(Player.settle), queues, st.sets(st.integers(0, 5), max_size=3)),
        st.tuples(st.just(Player.snapshot), queues, st.booleans()),
        st.tuples(st.just(Player.commit), st.none() | st.integers(0, 6)),
    ),
    max_size=25,
)
Step = tuple[Callable[..., Any], Any]


async def play(directory: Path, story: list[Step]) -> None:
    player = Player(directory)
    await player.commit(None)
    for step, *values in story:
        done = step(player, *values)
        if done is not None:
            await done
    await player.commit(None)
    await player.harness.close()


@settings(max_examples=30)
@given(steps)
def test_a_crash_after_any_batch_leaves_what_was_reported(story: list[Step]):
    with (
        tempfile.TemporaryDirectory(dir=quick_disk()) as directory,
        patch.object(sql_store, "RETRY_SECONDS", 0.001),
    ):
        asyncio.run(play(Path(directory), story))
