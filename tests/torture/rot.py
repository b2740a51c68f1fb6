"""R-11: single bits flip in the database of a stopped broker; nothing wrong is ever delivered.

Runs the broker in this process: hundreds of starts, each on a copy of the same data with one bit
changed. Allowed: everything is served; damaged messages are left out; the start is refused with
one sentence, when the file itself cannot be opened. Not allowed: a wrong body, an unexpected
error, a start that works once and never again.
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
from queues.storage.directory import DATABASE_NAME
from queues.storage.statements import PAGE_SIZE
from tests.torture.checker import Ledger
from tests.torture.client import Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.publisher import Publisher
from tests.torture.waiting import until_reaches

QUEUES = ("rot-a", "rot-b")
DEFINITION_PAGES = 30
MESSAGES, TAKEN = 300, 40
REFUSED_SHARE = 0.15
"""Half of the flips aim at what is used of the first pages; the schema is a large part of that."""


@dataclass(slots=True)
class Findings:
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    flip: str = ""

    def wrong(self, what: str) -> None:
        self.problems.append(f"{self.flip}: {what}")


class Unexpected(logging.Handler):
    """Notes whatever the broker logs with a traceback."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._findings.wrong(f"{record.getMessage()}: {record.exc_info[1]!r}")


async def flip_bits(directory: Path, flips: int, seed: int, progress: Progress = silent) -> Outcome:
    chance, ledger, findings = random.Random(seed), Ledger(), Findings()
    source = directory / "sound"
    await _make_data(source, ledger)
    sound = (source / DATABASE_NAME).read_bytes()
    size = len(sound)
    used = [at for at, byte in enumerate(sound[: DEFINITION_PAGES * PAGE_SIZE]) if byte]
    watch = Unexpected(findings)
    logger = logging.getLogger("leveret")
    logger.addHandler(watch)
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: findings.wrong(f"left behind: {context}")
    )
    try:
        for done in range(flips):
            # Half of them where the definitions and the journal are, in what is not empty space.
            place = chance.randrange(size) if done % 2 else chance.choice(used)
            bit = chance.randrange(8)
            findings.flip = f"byte {place} bit {bit}"
            data = directory / "damaged"
            shutil.rmtree(data, ignore_errors=True)
            shutil.copytree(source, data)
            _flip(data / DATABASE_NAME, place, bit)
            await _serve(data, ledger, findings, twice=done % 5 == 0)
            progress(done + 1, flips)
    finally:
        logger.removeHandler(watch)
        asyncio.get_running_loop().set_exception_handler(None)
    counts = findings.counts
    if counts["refused"] > max(2, flips * REFUSED_SHARE):
        findings.problems.append(f"{counts['refused']} starts refused")
    figures = (
        f"{flips} flips in {size} bytes: {counts['served']} served, {counts['refused']} refused "
        f"with one sentence, {counts['missing']} messages left out, {counts['wrong']} wrong bodies"
    )
    return Outcome("R-11", "rot", figures, tuple(findings.problems))


async def _make_data(directory: Path, ledger: Ledger) -> None:
    """Two queues, some messages settled, bindings: a bit of everything on disk."""
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
        await until_reaches(lambda: len(tags), TAKEN)
        client.ack(TAKEN, True)
        await client.sync()
        client.close()


def _flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))


async def _serve(data: Path, ledger: Ledger, findings: Findings, twice: bool) -> None:
    running = RunningBroker(in_process_settings(data_dir=data))
    try:
        await running.start()
    except LaunchError as error:
        findings.counts["refused"] += 1
        findings.refusals.append(f"{findings.flip}: {error}")
        if "\n" in str(error) or len(str(error)) > 300:
            findings.wrong(f"refused with {error}")
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        findings.wrong(f"did not start: {error!r}")
        return
    try:
        await _drain(running, ledger, findings)
        findings.counts["served"] += 1
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        findings.wrong(f"while serving: {error!r}")
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
        held = vhost.queues.get(queue)
        if held is None:
            findings.counts["queue gone"] += 1
            continue
        await _check(client, running.amqp_address, queue, held, ledger, findings)
    client.close()


async def _check(
    watcher: Client,
    address: tuple[str, int],
    queue: str,
    held: Any,
    ledger: Ledger,
    findings: Findings,
) -> None:
    """Read without acking: the data stays for the next start."""
    seen = Ledger(sent=ledger.sent)
    reader = await Client.connect(
        address, on_delivery=lambda _t, redelivered, body: seen.was_delivered(queue, body, True)
    )
    await reader.consume(queue, 0)
    async with asyncio.timeout(60):
        while held.ready_count:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    await reader.sync()
    findings.counts["wrong"] += seen.phantom
    if seen.phantom:
        findings.wrong(f"{seen.phantom} wrong bodies delivered")
    expected = MESSAGES - (TAKEN if queue == QUEUES[0] else 0)
    findings.counts["missing"] += max(0, expected - len(seen.seen))
    reader.close()
