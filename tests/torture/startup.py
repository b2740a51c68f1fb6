"""R-13: start with a large backlog and many queues, stop under load, refuse a second instance."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

from tests.torture.checker import Ledger
from tests.torture.client import Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess, slowness
from tests.torture.publisher import Publisher

BACKLOG_QUEUE = "backlog"
START_LIMIT, MEMORY_LIMIT, STOP_LIMIT, REFUSAL_LIMIT = 10.0, 300.0, 5.0, 2.0
"""Seconds on an idle machine, and MB."""
START_PROCESSOR_LIMIT = 3.0


async def fill(broker: BrokerProcess, messages: int, queues: int, progress: Progress) -> None:
    """Create a backlog of 1 KiB messages, and empty queues."""
    ledger = Ledger()
    publisher = Publisher(ledger, BACKLOG_QUEUE, 1)
    await publisher.start(broker.address)
    for done in range(0, messages, 10_000):
        await publisher.send_many(min(10_000, messages - done), window=5_000)
        progress(done, messages)
        ledger.confirmed.clear()
    for number in range(queues):
        await publisher.client.declare(f"idle-{number}")
    publisher.client.close()


async def start_and_stop(
    directory: Path, messages: int, queues: int, progress: Progress = silent
) -> Outcome:
    problems: list[str] = []
    late: list[str] = []
    broker = BrokerProcess(directory)
    await broker.start()
    await fill(broker, messages, queues, progress)
    filled = broker.memory()
    await broker.kill()
    await broker.start()
    after_kill, processor = broker.start_seconds, broker.start_processor_seconds
    await broker.stop()
    await broker.start()
    after_stop = broker.start_seconds
    client = await Client.connect(broker.address)
    restored = await client.count(BACKLOG_QUEUE)
    client.close()
    if restored != messages:
        problems.append(f"{restored} messages instead of {messages} after the restart")
    slow = await slowness()
    refusal = await _second_instance(directory, problems)
    slow = max(slow, await slowness())
    stopping, loaded = await _stop_under_load(broker, problems)
    memory = max(filled, loaded)
    for name, value, limit in (
        ("start after kill -9", after_kill, START_LIMIT * slow),
        ("start after a clean stop", after_stop, START_LIMIT * slow),
        ("CPU seconds of a start", processor, START_PROCESSOR_LIMIT),
        ("stopping", stopping, STOP_LIMIT * slow),
        ("refusal of a second instance", refusal, REFUSAL_LIMIT * slow),
    ):
        if value > limit:
            late.append(f"{name}: {value:.1f}, at most {limit}")
    if memory > MEMORY_LIMIT:
        problems.append(f"resident MB: {memory:.0f}, at most {MEMORY_LIMIT}")
    figures = (
        f"{messages} messages of 1 KiB and {queues} queues: accepts after {after_kill:.1f} s "
        f"(kill -9; {processor:.1f} s of CPU time) and {after_stop:.1f} s (clean stop), "
        f"{memory:.0f} MB at most; SIGTERM under load ends it in {stopping:.1f} s; "
        f"a second instance is refused in {refusal:.1f} s "
        f"(machine {slow:.1f} times slower than an idle one)"
    )
    return Outcome("R-13", "start and stop", figures, tuple(problems), tuple(late))


async def _second_instance(directory: Path, problems: list[str]) -> float:
    second = BrokerProcess(directory)
    began = time.monotonic()
    line = await second.launch()
    code = await second.wait(60)
    took = time.monotonic() - began
    await second.kill()
    message = second.log_tail().strip()
    starts, _, refusal = message.partition("\n")
    if line or code == 0 or " starts: " not in starts or "\n" in refusal or "in use" not in refusal:
        problems.append(f"a second instance printed {message!r} and exited with {code}")
    return took


async def _stop_under_load(broker: BrokerProcess, problems: list[str]) -> tuple[float, float]:
    """SIGTERM while publishing and consuming: clients get code 320, and nothing is lost."""
    ledger, queue = Ledger(), "busy"
    publisher = Publisher(ledger, queue, 7)
    await publisher.start(broker.address)
    flood = asyncio.create_task(_flood(publisher))
    reader = await Client.connect(broker.address, on_delivery=lambda *_: None)
    await reader.consume(BACKLOG_QUEUE, 100)
    await asyncio.sleep(1)
    peak = broker.memory()
    began = time.monotonic()
    code = await broker.stop()
    took = time.monotonic() - began
    await flood
    for client in (publisher.client, reader):
        if client.closed_with is None or client.closed_with[0] != 320:
            problems.append(f"a client got {client.closed_with} instead of 320")
    if code != 0:
        problems.append(f"exit code {code}")
    await broker.start()
    counter = await Client.connect(broker.address)
    left = await counter.count(queue)
    counter.close()
    if left < publisher.confirmed:
        problems.append(f"{publisher.confirmed - left} confirmed messages lost by SIGTERM")
    await broker.stop()
    return took, peak


async def _flood(publisher: Publisher) -> None:
    with suppress(ConnectionGone):
        await publisher.flood(lambda: publisher.client.closed_with is not None)
