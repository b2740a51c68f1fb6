"""R-11: single bits flip in the database of a stopped broker; no wrong message is delivered.

The broker runs in this process: hundreds of starts, each on a copy of the same data with one bit
changed. Allowed: all messages are served; damaged messages are left out; the start is refused with
one sentence because the header or the schema on the first page is damaged. Not allowed: a wrong
body, an unexpected error, a start that works only once, any other refusal.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pamqp import commands

from leveret.launch import LaunchError, RunningBroker, in_process_settings
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.statements import PAGE_SIZE
from tests.support.polling import wait_until_async
from tests.torture.checker import Ledger
from tests.torture.client import Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.publisher import Publisher

QUEUES = ("rot-a", "rot-b")
DEFINITION_PAGES = 30
MESSAGES, TAKEN = 300, 40


@dataclass(slots=True)
class Findings:
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    flip: str = ""
    is_first_page: bool = False

    def add_problem(self, problem: str) -> None:
        self.problems.append(f"{self.flip}: {problem}")


class TracebackHandler(logging.Handler):
    """Reports every log record with a traceback as a problem."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._findings.add_problem(f"{record.getMessage()}: {record.exc_info[1]!r}")


async def flip_bits(directory: Path, flips: int, seed: int, progress: Progress = silent) -> Outcome:
    rng, ledger, findings = random.Random(seed), Ledger(), Findings()
    source = directory / "sound"
    await _make_data(source, ledger)
    sound = (source / DATABASE_NAME).read_bytes()
    size = len(sound)
    used = [at for at, byte in enumerate(sound[: DEFINITION_PAGES * PAGE_SIZE]) if byte]
    watch = TracebackHandler(findings)
    logger = logging.getLogger("leveret")
    logger.addHandler(watch)
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: findings.add_problem(f"unhandled in the loop: {context}")
    )
    try:
        for done in range(flips):
            # Half of the flips hit non-zero bytes of the pages with definitions and journal.
            position = rng.randrange(size) if done % 2 else rng.choice(used)
            bit = rng.randrange(8)
            findings.flip = f"byte {position} bit {bit}"
            findings.is_first_page = position < PAGE_SIZE
            data = directory / "damaged"
            shutil.rmtree(data, ignore_errors=True)
            shutil.copytree(source, data)
            _flip(data / DATABASE_NAME, position, bit)
            await _serve(data, ledger, findings, twice=done % 5 == 0)
            progress(done + 1, flips)
    finally:
        logger.removeHandler(watch)
        asyncio.get_running_loop().set_exception_handler(None)
    counts = findings.counts
    figures = (
        f"{flips} flips in {size} bytes: {counts['served']} served, {counts['refused']} refused "
        f"with one sentence, {counts['missing']} messages left out, {counts['wrong']} wrong bodies"
    )
    return Outcome("R-11", "damaged database", figures, tuple(findings.problems))


async def _make_data(directory: Path, ledger: Ledger) -> None:
    """Two queues, settled messages and bindings: a little of everything on disk."""
    async with RunningBroker(in_process_settings(data_dir=directory)) as running:
        for number, queue in enumerate(QUEUES):
            publisher = Publisher(ledger, queue, number, 500)
            await publisher.start(running.amqp_address)
            bind = commands.Queue.Bind(queue=queue, exchange="amq.topic", routing_key="a.#")
            await publisher.client.call(bind, commands.Queue.BindOk)
            await publisher.send_many(MESSAGES)
            publisher.client.close()
        tags: list[int] = []
        client = await Client.connect(
            running.amqp_address, on_delivery=lambda tag, _r, _b: tags.append(tag)
        )
        await client.consume(QUEUES[0], TAKEN)
        await wait_until_async(lambda: len(tags) >= TAKEN)
        client.ack(TAKEN, True)
        await client.sync()
        client.close()


def _flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


async def _serve(data: Path, ledger: Ledger, findings: Findings, twice: bool) -> None:
    running = RunningBroker(in_process_settings(data_dir=data))
    try:
        await running.start()
    except LaunchError as error:
        findings.counts["refused"] += 1
        findings.refusals.append(f"{findings.flip}: {error}")
        if "\n" in str(error) or len(str(error)) > 400 or not findings.is_first_page:
            findings.add_problem(f"refused with {error}")
        return
    except Exception as error:  # noqa: BLE001 - any exception is a problem
        findings.add_problem(f"did not start: {error!r}")
        return
    try:
        await _drain(running, ledger, findings)
        findings.counts["served"] += 1
    except Exception as error:  # noqa: BLE001 - any exception is a problem
        findings.add_problem(f"while serving: {error!r}")
    finally:
        await running.stop()
    if twice:
        await _serve(data, ledger, findings, twice=False)


async def _drain(running: RunningBroker, ledger: Ledger, findings: Findings) -> None:
    try:
        client = await Client.connect(running.amqp_address)
    except ConnectionGone:
        findings.counts["login refused"] += 1
        return
    for queue in QUEUES:
        vhost: Any = running.broker.vhosts["/"]
        classic_queue = vhost.queues.get(queue)
        if classic_queue is None:
            findings.counts["queue gone"] += 1
            continue
        await _check(client, running.amqp_address, queue, classic_queue, ledger, findings)
    client.close()


async def _check(
    watcher: Client,
    address: tuple[str, int],
    queue: str,
    classic_queue: Any,
    ledger: Ledger,
    findings: Findings,
) -> None:
    """Consume without acks, so that the data stays for the next start."""
    seen = Ledger(sent=ledger.sent)
    reader = await Client.connect(
        address, on_delivery=lambda _t, redelivered, body: seen.was_delivered(queue, body, True)
    )
    await reader.consume(queue, 0)
    await wait_until_async(lambda: not classic_queue.ready_count)
    await reader.sync()
    findings.counts["wrong"] += seen.phantom
    if seen.phantom:
        findings.add_problem(f"{seen.phantom} wrong bodies delivered")
    expected = MESSAGES - (TAKEN if queue == QUEUES[0] else 0)
    findings.counts["missing"] += max(0, expected - len(seen.seen))
    reader.close()
