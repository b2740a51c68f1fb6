"""A queue that spills against a model: order, nothing twice, nothing lost, no file left."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.message import LARGE_BODY, Address, Message, encode_properties
from leveret.model.run import Run
from leveret.queues.classic.classic_queue import ClassicQueue, QueueCallbacks
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Outcome
from leveret.queues.spec import QueueSpec
from leveret.queues.storage import spill
from leveret.queues.storage.spill import SpillFolder
from tests.support.fake_consumer import FakeConsumer
from tests.support.polling import wait_until_async
from tests.torture.suites import size_or

ADDRESS = Address.of("exchange", "key")
WINDOW = 4
START_MS = 1_000_000

_steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 12)),
    st.tuples(st.just("publish_run"), st.integers(2, 12)),
    st.tuples(st.just("publish_large"), st.just(1)),
    st.tuples(st.just("publish_expiring"), st.integers(1, 3)),
    st.tuples(st.just("consume"), st.integers(1, 6)),
    st.tuples(st.just("ack"), st.integers(1, 6)),
    st.tuples(st.just("requeue"), st.integers(1, 6)),
    st.tuples(st.just("cancel"), st.just(0)),
    st.tuples(st.just("get"), st.integers(1, 6)),
    st.tuples(st.just("browse"), st.integers(0, 20)),
    st.tuples(st.just("purge"), st.just(0)),
    st.tuples(st.just("wait"), st.just(100)),
)


class Subject:
    """A queue with a window of a few messages, and what it should hold."""

    def __init__(self, directory: Path) -> None:
        self.now_ms, self.last_id = START_MS, 0
        self.folder = SpillFolder(directory, lambda: None)
        self.files = directory / spill.FOLDER
        callbacks = QueueCallbacks(now_ms=lambda: self.now_ms, open_spill=self.folder.open)
        self.queue: Any = ClassicQueue(QueueSpec("q", False), 1, callbacks, window=WINDOW)
        self.bodies: dict[int, bytes] = {}
        self.expires: dict[int, int] = {}
        self.ready: list[int] = []
        self.consumer: FakeConsumer | None = None

    async def settle_down(self) -> None:
        """Dispatch until nothing is read from disk any more."""
        while True:
            self.queue.dispatch()
            task = self.queue.backlog._task
            if task is None:
                break
            await task
        self.expire()
        for entry in self.consumer.entries() if self.consumer else ():
            assert entry.message.body == self.bodies[entry.id]
            assert entry.message.address == ADDRESS
            if entry.id in self.ready:
                assert entry.id == self.ready.pop(0)
        assert self.queue.ready_count == len(self.ready)
        assert self.queue.message_bytes == sum(len(self.bodies[i]) for i in self.ready)

    def expire(self) -> None:
        while self.ready and self.expires.get(self.ready[0], self.now_ms + 1) <= self.now_ms:
            self.ready.pop(0)

    def message(self, body: bytes, ttl: int | None = None) -> Message:
        self.last_id += 1
        properties = encode_properties({} if ttl is None else {"expiration": str(ttl)})
        message = Message.build(ADDRESS, properties, body)
        message.id, message.time_ms = self.last_id, self.now_ms
        self.bodies[message.id] = body
        if ttl is not None:
            self.expires[message.id] = self.now_ms + ttl
        self.ready.append(message.id)
        return message

    async def publish(self, count: int) -> None:
        for number in range(count):
            self.queue.enqueue(Run.of([self.message(b"%d" % number)]))

    async def publish_run(self, count: int) -> None:
        messages = [self.message(b"run %d" % number) for number in range(count)]
        self.queue.enqueue(Run.of(messages))

    async def publish_large(self, _: int) -> None:
        message = self.message(b"%07d" % self.last_id * (LARGE_BODY // 7 + 2))
        self.queue.enqueue(Run.of([message]))

    async def publish_expiring(self, count: int) -> None:
        for _ in range(count):
            self.queue.enqueue(Run.of([self.message(b"expires", ttl=100)]))

    async def consume(self, prefetch: int) -> None:
        if self.consumer is None:
            self.consumer = FakeConsumer(prefetch)
            self.queue.add_consumer(self.consumer)

    def take(self, count: int) -> list[Delivery]:
        if self.consumer is None:
            return []
        return self.consumer.take([entry.id for entry in self.consumer.entries()][:count])

    async def ack(self, count: int) -> None:
        self.queue.settle(self.take(count), Outcome.ACK, 0)

    async def requeue(self, count: int) -> None:
        deliveries = self.take(count)
        ids = [number for delivery in deliveries for number in delivery.ids]
        self.ready = sorted([*self.ready, *ids])
        self.queue.settle(deliveries, Outcome.REQUEUE, 0)

    async def cancel(self, _: int) -> None:
        if self.consumer is not None:
            await self.requeue(len(self.consumer.unacked))
            self.queue.remove_consumer(self.consumer)
            self.consumer = None

    async def get(self, count: int) -> None:
        for _ in range(count):
            await self.settle_down()
            delivery = self.queue.basic_get(0, no_ack=True)
            if not self.ready:
                assert delivery is None
                return
            (entry,) = delivery.entries()
            assert entry.id == self.ready.pop(0)
            assert entry.message.body == self.bodies[entry.id]

    async def browse(self, offset: int) -> None:
        unacked = len(self.queue.unacked)
        peeked = self.queue.peek(unacked + offset, 8)
        ids = [entry.id for entry in peeked.entries]
        assert [*ids, *peeked.disk_ids] == self.ready[offset : offset + 8]
        for stored in await peeked.load(peeked.disk_ids):
            assert bytes(stored.body) == self.bodies[stored.id]

    async def purge(self, _: int) -> None:
        assert self.queue.purge() == len(self.ready)
        self.ready.clear()

    async def wait(self, ms: int) -> None:
        self.now_ms += ms

    async def run(self, steps: list[tuple[str, int]]) -> None:
        for name, number in steps:
            await getattr(self, name)(number)
            await self.settle_down()
        await self.cancel(0)
        await self.get(len(self.ready) + 1)
        self.queue.close(deleted=True)
        assert self.folder.unwritten_bytes == self.folder.file_bytes == 0
        self.folder.close()
        assert not self.files.exists()


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "BLOCK_MESSAGES", 3)
    monkeypatch.setattr(spill, "SEGMENT_BYTES", 400)


@settings(max_examples=size_or(60), deadline=None)
@given(steps=st.lists(_steps, max_size=25))
def test_a_queue_that_spills_behaves_as_one_in_memory(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            await Subject(Path(directory)).run(steps)

    asyncio.run(run())


async def test_segments_are_deleted_when_their_messages_were_taken(tmp_path: Path) -> None:
    subject = Subject(tmp_path)
    await subject.publish(200)
    await wait_until_async(lambda: not subject.folder.unwritten_bytes)
    spilled = len(list(subject.files.iterdir()))
    assert spilled > 10
    sizes = [path.stat().st_size for path in subject.files.iterdir()]
    assert subject.folder.file_bytes == sum(sizes)
    await subject.get(150)
    subject.queue.purge()
    subject.folder._writer.stop()
    assert not list(subject.files.iterdir())
    assert subject.folder.file_bytes == 0


async def test_messages_stay_readable_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_buffers = spill._write_buffers
    is_full = True

    def write(block: Any, buffers: list[bytes]) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        write_buffers(block, buffers)

    monkeypatch.setattr(spill, "_write_buffers", write)
    monkeypatch.setattr(spill, "RETRY_SECONDS", 0.01)
    subject = Subject(tmp_path)
    await subject.publish(WINDOW + 50)
    await wait_until_async(lambda: "No space left on device" in caplog.text)
    assert subject.folder.unwritten_bytes
    await subject.get(10)
    is_full = False
    await wait_until_async(lambda: not subject.folder.unwritten_bytes)
    await subject.get(WINDOW + 41)
    assert caplog.text.count("No space left on device") == 1
    subject.folder.close()


async def test_a_damaged_block_is_not_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subject = Subject(tmp_path)
    await subject.publish_run(WINDOW)
    for _ in range(2):
        await subject.publish_run(3)
    await wait_until_async(lambda: not subject.folder.unwritten_bytes)
    (segment,) = subject.files.iterdir()
    content = bytearray(segment.read_bytes())
    content[20] ^= 1
    segment.write_bytes(content)
    for expected in (1, 2, 3, 4, 8, 9, 10):
        await wait_until_async(lambda: subject.queue.basic_get(0, no_ack=False) is not None)
        assert [*subject.queue.unacked][-1].ids == [expected]
    assert subject.queue.counters.unreadable == 3
    assert "does not match its checksum" in caplog.text
    subject.folder.close()
