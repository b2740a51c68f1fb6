"""R-03: the power may fail at any moment of a recorded run.

A run on the recording file system gives all writes, syncs and names in order, with marks that say
how many messages are confirmed. For many cut points and all four modes, the disk is brought to the
cut, the power fails, and recovery opens what is left. Everything confirmed before the cut must be
there and intact, no message acked and synced before it may be back, and every transaction is both
in its queue and in its log, or in neither.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pamqp import commands

from leveret.launch import LaunchError, RunningBroker, in_process_settings
from leveret.model.store import StoredMessage
from tests.support.polling import wait_until_async
from tests.torture.checker import Ledger, make_body, read_body
from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.power_loss import WriteBackDisk, write_back_disk
from tests.torture.process import BrokerProcess
from tests.torture.publisher import Publisher
from tests.torture.writeback_fs import Disk, Mode, Replay

UNCONSUMED, CONSUMED, LOG = "kept", "taken", "log"
TX, TX_LOG = "tx", "tx-log"
MESSAGES, TRANSACTIONS = 1_000, 150
Id = tuple[str, int, int]


class RecordedLedger(Ledger):
    """A ledger that writes a mark into the record whenever one more fact is certain."""

    def __init__(self, disk: WriteBackDisk) -> None:
        super().__init__()
        self._disk = disk
        self.certain: list[tuple[bool, Id]] = []
        """In order: (True, message) if confirmed, (False, message) if acked and synced."""

    def was_confirmed(self, queue: str, publisher: int, sequence: int) -> None:
        super().was_confirmed(queue, publisher, sequence)
        self._note(True, (queue, publisher, sequence))

    def was_settled(self, queue: str, body: bytes) -> None:
        super().was_settled(queue, body)
        self._note(False, (queue, *(read_body(body) or (0, 0))))

    def _note(self, confirmed: bool, message: Id) -> None:
        self.certain.append((confirmed, message))
        self._disk.mark(len(self.certain))


async def enumerate_states(
    directory: Path, states: int, seed: int, progress: Progress = silent
) -> Outcome:
    rng = random.Random(seed)
    record = directory / "record"
    ledger = await _record(directory, record)
    steps = [json.loads(line) for line in record.read_text(encoding="ascii").splitlines()]
    problems: list[str] = []
    before_first_start = refused = 0
    for number, (replay, mode) in enumerate(_moments(steps, states, rng)):
        state_directory = directory / "state"
        shutil.rmtree(state_directory, ignore_errors=True)
        _materialize(replay.disk, state_directory)
        certain = ledger.certain[: replay.mark]
        label = f"state {number}, {mode.value}, mark {replay.mark}"
        try:
            recovered = await _open(state_directory / "data")
        except LaunchError as error:
            refused += 1
            if certain:
                problems.append(f"{label}: {error}")
            continue
        before_first_start += not certain
        problems += [f"{label}: {problem}" for problem in _judge(recovered, certain, ledger)]
        progress(number + 1, states)
    figures = (
        f"{states} states of {len(steps)} recorded steps, {len(ledger.confirmed)} messages "
        f"confirmed by the end; {before_first_start} states before anything was confirmed, "
        f"{refused} refused"
    )
    return Outcome("R-03", "crash states", figures, tuple(problems))


def _moments(steps: list[Any], states: int, rng: random.Random) -> Iterator[tuple[Replay, Mode]]:
    """Cut points in order; a copy of the disk fails, since the replay continues after it."""
    replay, at = Replay(), 0
    for cut in sorted(rng.randrange(1, len(steps) + 1) for _ in range(states)):
        while at < cut:
            replay.step(steps[at])
            at += 1
        mode = rng.choice(list(Mode))
        failed = Replay()
        failed.disk, failed.mark = replay.disk.copy(), replay.mark
        failed.disk.fail(mode, rng)
        yield failed, mode


def _materialize(disk: Disk, target_directory: Path) -> None:
    target_directory.mkdir()
    for path, file in sorted(disk.names.items()):
        target = target_directory / path.lstrip("/")
        if file.is_directory:
            target.mkdir(parents=True, exist_ok=True)
        elif target.parent.is_dir():  # a name in a lost directory is lost, too
            target.write_bytes(file.seen)


# The run ------------------------------------------------------------------------------------------


async def _record(directory: Path, record: Path) -> RecordedLedger:
    """Publish to a queue, to a queue with a consumer and to a log, with confirms and syncs."""
    async with write_back_disk(directory / "recorded", record) as disk:
        ledger = RecordedLedger(disk)
        broker = BrokerProcess(disk.mountpoint / "data")
        await broker.start()
        setup = await Client.connect(broker.address)
        for name in (LOG, TX_LOG):
            await setup.declare(name, arguments={"x-queue-type": "stream"})
        for name in (UNCONSUMED, CONSUMED, TX):
            await setup.declare(name)
        setup.close()
        other_clients = asyncio.gather(
            _consume(broker.address, ledger), _commit(broker.address, ledger)
        )
        publishers = [
            Publisher(ledger, queue, n, 600) for n, queue in enumerate((UNCONSUMED, CONSUMED))
        ]
        publishers.append(Publisher(ledger, LOG, 2, 600, declare=False))
        for publisher in publishers:
            await publisher.start(broker.address)
        await asyncio.gather(
            *(publisher.send_many(MESSAGES, window=60) for publisher in publishers)
        )
        await other_clients
        await broker.kill()
    return ledger


async def _consume(address: tuple[str, int], ledger: Ledger) -> None:
    """Ack ten messages at a time and sync, until half of the messages are acked."""
    bodies: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
    client = await Client.connect(
        address, on_delivery=lambda tag, _r, body: bodies.put_nowait((tag, body))
    )
    await client.consume(CONSUMED, 50)
    for _ in range(MESSAGES // 20):
        some = [await asyncio.wait_for(bodies.get(), 60) for _ in range(10)]
        client.ack(some[-1][0], True)
        for _, body in some:
            ledger.seen[CONSUMED, *(read_body(body) or (0, 0))] = 1
        await client.sync()
        for _, body in some:
            ledger.was_settled(CONSUMED, body)
    client.close()


async def _commit(address: tuple[str, int], ledger: Ledger) -> None:
    """Commit transactions of one message to a queue and one to a log: two files."""
    client = await Client.connect(address)
    await client.call(commands.Tx.Select(), commands.Tx.SelectOk)
    for sequence in range(1, TRANSACTIONS + 1):
        for queue in (TX, TX_LOG):
            ledger.will_send(queue, 3)
            client.publish("", queue, make_body(3, sequence, 200), PROPERTIES["persistent"])
        await client.call(commands.Tx.Commit(), commands.Tx.CommitOk)
        for queue in (TX, TX_LOG):
            ledger.was_confirmed(queue, 3, sequence)
    client.close()


# The states ---------------------------------------------------------------------------------------


async def _open(data: Path) -> dict[str, list[tuple[int, int] | None]]:
    """Messages that recovery finds, by queue: (publisher, sequence), or None for a damaged body."""
    recovered: dict[str, list[tuple[int, int] | None]] = {}
    async with RunningBroker(in_process_settings(data_dir=data)) as running:
        queues: dict[str, Any] = running.broker.vhosts["/"].queues
        for name in (UNCONSUMED, CONSUMED, TX):
            if name in queues:
                loaded = await running.broker.store.load(queues[name].live().ids)
                recovered[name] = [
                    read_body(bytes(message.body)) if isinstance(message, StoredMessage) else None
                    for message in loaded
                ]
        for name in (LOG, TX_LOG):
            if name in queues:
                records = queues[name].ready_count
                recovered[name] = await _read_log(running.amqp_address, name, records)
    return recovered


async def _read_log(
    address: tuple[str, int], name: str, records: int
) -> list[tuple[int, int] | None]:
    """Read the log from its first record."""
    records_read: list[tuple[int, int] | None] = []
    client = await Client.connect(
        address, on_delivery=lambda _t, _r, b: records_read.append(read_body(b))
    )
    await client.consume(name, 10_000, arguments={"x-stream-offset": "first"})
    await wait_until_async(lambda: len(records_read) >= records)
    client.close()
    return records_read


def _judge(
    recovered: dict[str, list[tuple[int, int] | None]],
    certain: list[tuple[bool, Id]],
    ledger: RecordedLedger,
) -> list[str]:
    problems = []
    for queue, messages in recovered.items():
        damaged = messages.count(None)
        if damaged:
            problems.append(f"{damaged} damaged in {queue}")
        intact = [message for message in messages if message is not None]
        if len(set(intact)) != len(intact) or intact != sorted(intact):
            problems.append(f"{queue} is not in order, or contains a message twice")
    torn = set(recovered.get(TX, ())) ^ set(recovered.get(TX_LOG, ()))
    if torn:
        problems.append(f"{len(torn)} transactions are in only one of queue and log")
    present = {
        (queue, *message)
        for queue, messages in recovered.items()
        for message in messages
        if message is not None
    }
    settled = {message for confirmed, message in certain if not confirmed}
    lost = {message for confirmed, message in certain if confirmed} - present - ledger.seen.keys()
    if lost:
        problems.append(f"{len(lost)} confirmed before the cut are lost, e.g. {min(lost)}")
    if settled & present:
        problems.append(f"{len(settled & present)} acked and synced before the cut are redelivered")
    return problems
