"""R-14: consumers of a large backlog stop reading; memory stays bounded, others are not slowed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.torture.checker import Ledger
from tests.torture.client import Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.publisher import Publisher
from tests.torture.startup import BACKLOG_QUEUE, MEMORY_LIMIT, fill

FRAME_BYTES_PER_MESSAGE = 1024 + 8 + 25 + 60
BUFFER_LIMIT = 1024 * 1024 + 64 * 1024
MIN_RATE_SHARE = 0.8
"""The goal on an idle machine; on a busy one the ratio varies more."""


async def stall_consumers(
    directory: Path, messages: int, seconds: float, progress: Progress = silent
) -> Outcome:
    """`directory` may already contain a backlog."""
    problems: list[str] = []
    broker = BrokerProcess(directory)
    await broker.start()
    client = await Client.connect(broker.address)
    await client.declare(BACKLOG_QUEUE)
    missing = messages - await client.count(BACKLOG_QUEUE)
    client.close()
    if missing > 0:
        await fill(broker, missing, 0, progress)
    without_stalled = await _healthy_pair(broker, seconds)
    stalled, buffered = [], []
    for no_ack in (True, False):
        consumer, buffered_bytes = await _stalled(broker, no_ack)
        stalled.append(consumer)
        buffered.append(buffered_bytes)
    with_stalled = await _healthy_pair(broker, seconds)
    memory = broker.memory()
    for consumer in stalled:
        consumer.close()
    await broker.stop()
    if memory > MEMORY_LIMIT:
        problems.append(f"{memory:.0f} MB resident")
    if max(buffered) > BUFFER_LIMIT:
        problems.append(f"{max(buffered)} bytes buffered for one connection")
    late = []
    if with_stalled < without_stalled * MIN_RATE_SHARE:
        late.append(f"another pair fell from {without_stalled:.0f} to {with_stalled:.0f} msg/s")
    figures = (
        f"{messages} messages of 1 KiB, a no_ack and a prefetch 0 consumer that do not read: "
        f"{memory:.0f} MB at most, at most {max(buffered)} bytes buffered in the broker; a healthy "
        f"pair makes {with_stalled:.0f} msg/s with them, {without_stalled:.0f} without"
    )
    return Outcome("R-14", "consumers that do not read", figures, tuple(problems), tuple(late))


async def _stalled(broker: BrokerProcess, no_ack: bool) -> tuple[Client, int]:
    """A consumer that does not read, and the bytes that the broker itself buffers for it."""
    watcher = await Client.connect(broker.address)
    before = await watcher.count(BACKLOG_QUEUE)
    client = await Client.connect(broker.address, on_delivery=lambda *_: None)
    await client.consume(BACKLOG_QUEUE, 0, no_ack=no_ack)
    client.stop_reading()
    left, last = await watcher.count(BACKLOG_QUEUE), -1
    async with asyncio.timeout(120):
        while left != last:
            await asyncio.sleep(0.5)
            left, last = await watcher.count(BACKLOG_QUEUE), left
    watcher.close()
    taken = (before - left) * FRAME_BYTES_PER_MESSAGE
    return client, taken - client.received - _kernel_buffer_bytes(client)


def _kernel_buffer_bytes(client: Client) -> int:
    """Bytes in the send buffer of the broker's socket and the receive buffer of the client's."""
    assert client.transport is not None
    own = client.transport.get_extra_info("sockname")[1]
    peer = client.transport.get_extra_info("peername")[1]
    total = 0
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        ports = tuple(int(field.rpartition(":")[2], 16) for field in fields[1:3])
        sending, receiving = (int(size, 16) for size in fields[4].split(":"))
        if ports == (peer, own):
            total += sending
        elif ports == (own, peer):
            total += receiving
    return total


async def _healthy_pair(broker: BrokerProcess, seconds: float) -> float:
    """Messages per second from a publisher to a consumer that acks."""
    ledger, queue, delivered_count = Ledger(), "healthy", 0
    consumer: Client

    def delivered(tag: int, _redelivered: bool, _body: bytes) -> None:
        nonlocal delivered_count
        delivered_count += 1
        if tag % 50 == 0:
            consumer.ack(tag, True)

    publisher = Publisher(ledger, queue, 3, 200)
    await publisher.start(broker.address)
    consumer = await Client.connect(broker.address, on_delivery=delivered)
    await consumer.consume(queue, 500)
    began = time.monotonic()
    await publisher.flood(lambda: time.monotonic() - began > seconds)
    await publisher.until(lambda: not publisher.open)
    rate = delivered_count / (time.monotonic() - began)
    publisher.client.close()
    consumer.close()
    return rate
