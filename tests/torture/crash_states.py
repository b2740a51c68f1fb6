"""R-03: every moment of a recorded run is a moment at which the power could have failed.

A run on the recording file system gives all writes, syncs and names in order, with marks: "so many
messages are confirmed by now". For many cut points and all four modes the disk is brought to the
cut, the power fails, and what is left is opened by recovery. Everything confirmed before the cut
must be there, whole; nothing acked and synced before it may be back; every transaction is in both
its queue and its log or in neither.
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
from tests.torture.checker import Ledger, make_body, read_body
from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.power_loss import WriteBackDisk, write_back_disk
from tests.torture.process import BrokerProcess
from tests.torture.publisher import Publisher
from tests.torture.waiting import until
from tests.torture.writeback_fs import Disk, Mode, Replay

KEPT, TAKEN, LOG = "kept", "taken", "log"
TX, TX_LOG = "tx", "tx-log"
MESSAGES, TRANSACTIONS = 1_000, 150
Id = tuple[str, int, int]


class Marked(Ledger):
    """A ledger that marks the record whenever something more is certain."""

    def __init__(self, disk: WriteBackDisk) -> None:
        super().__init__()
        self._disk = disk
        self.certain: list[tuple[bool, Id]] = []
        """In order: confirmed (True) or acked and synced (False)."""

    def was_confirmed(self, queue: str, publisher: int, sequence: int) -> None:
        super().was_confirmed(queue, publisher, sequence)
        self._note(True, (queue, publisher, sequence))

    def was_settled(self, queue: str, body: bytes) -> None:
        super().was_settled(queue, body)
        self._note(False, (queue, *(read_body(body) or (0, 0))))

    def _note(self, confirmed: bool, what: Id) -> None:
        self.certain.append((confirmed, what))
        self._disk.mark(len(self.certain))


async def enumerate_states(
    directory: Path, states: int, seed: int, progress: Progress = silent
) -> Outcome:
    chance = random.Random(seed)
    record = directory / "record"
    ledger = await _record(directory, record)
    steps = [json.loads(line) for line in record.read_text(encoding="ascii").splitlines()]
    problems: list[str] = []
    before_first_start = refused = 0
    for number, (replay, mode) in enumerate(_moments(steps, states, chance)):
        place = directory / "state"
        shutil.rmtree(place, ignore_errors=True)
        _materialize(replay.disk, place)
        sure = ledger.certain[: replay.mark]
        where = f"state {number}, {mode.value}, mark {replay.mark}"
        try:
            found = await _open(place / "data")
        except LaunchError as error:
            refused += 1
            if sure:
                problems.append(f"{where}: {error}")
            continue
        before_first_start += not sure
        problems += [f"{where}: {problem}" for problem in _judge(found, sure, ledger)]
        progress(number + 1, states)
    figures = (
        f"{states} states of {len(steps)} recorded steps, {len(ledger.confirmed)} messages "
        f"confirmed by the end; {before_first_start} states before anything was confirmed, "
        f"{refused} refused"
    )
    return Outcome("R-03", "crash states", figures, tuple(problems))


def _moments(steps: list[Any], states: int, chance: random.Random) -> Iterator[tuple[Replay, Mode]]:
    """Cut points in order; the disk is copied, for the run goes on after each failure."""
    replay, at = Replay(), 0
    for cut in sorted(chance.randrange(1, len(steps) + 1) for _ in range(states)):
        while at < cut:
            replay.step(steps[at])
            at += 1
        mode = chance.choice(list(Mode))
        failed = Replay()
        failed.disk, failed.mark = replay.disk.copy(), replay.mark
        failed.disk.fail(mode, chance)
        yield failed, mode


def _materialize(disk: Disk, place: Path) -> None:
    place.mkdir()
    for path, file in sorted(disk.names.items()):
        target = place / path.lstrip("/")
        if file.is_directory:
            target.mkdir(parents=True, exist_ok=True)
        elif target.parent.is_dir():  # a name whose directory was lost is lost, too
            target.write_bytes(file.seen)


# The run ------------------------------------------------------------------------------------------


async def _record(directory: Path, record: Path) -> Marked:
    """Publish to a queue, to one with a consumer and to a log; all by confirms and syncs."""
    async with write_back_disk(directory / "recorded", record) as disk:
        ledger = Marked(disk)
        broker = BrokerProcess(disk.place / "data")
        await broker.start()
        setup = await Client.connect(broker.address)
        for name in (LOG, TX_LOG):
            await setup.declare(name, arguments={"x-queue-type": "stream"})
        for name in (KEPT, TAKEN, TX):
            await setup.declare(name)
        setup.close()
        beside = asyncio.gather(_consume(broker.address, ledger), _commit(broker.address, ledger))
        publishers = [Publisher(ledger, queue, n, 600) for n, queue in enumerate((KEPT, TAKEN))]
        publishers.append(Publisher(ledger, LOG, 2, 600, declare=False))
        for publisher in publishers:
            await publisher.start(broker.address)
        await asyncio.gather(*(one.send_many(MESSAGES, window=60) for one in publishers))
        await beside
        await broker.kill()
    return ledger


async def _consume(address: tuple[str, int], ledger: Ledger) -> None:
    """Ack in tens and sync, until half of the messages are gone."""
    bodies: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
    client = await Client.connect(
        address, on_delivery=lambda tag, _r, body: bodies.put_nowait((tag, body))
    )
    await client.consume(TAKEN, 50)
    for _ in range(MESSAGES // 20):
        some = [await asyncio.wait_for(bodies.get(), 60) for _ in range(10)]
        client.ack(some[-1][0], True)
        for _, body in some:
            ledger.seen[TAKEN, *(read_body(body) or (0, 0))] = 1
        await client.sync()
        for _, body in some:
            ledger.was_settled(TAKEN, body)
    client.close()


async def _commit(address: tuple[str, int], ledger: Ledger) -> None:
    """Transactions of one message to a queue and one to a log: two files."""
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
    """What recovery finds, by queue: (publisher, sequence), None for a body that is not whole."""
    found: dict[str, list[tuple[int, int] | None]] = {}
    async with RunningBroker(in_process_settings(data_dir=data)) as running:
        queues: dict[str, Any] = running.broker.vhosts["/"].queues
        for name in (KEPT, TAKEN, TX):
            if name in queues:
                loaded = await running.broker.store.load(queues[name].live().ids)
                found[name] = [
                    read_body(one.body) if isinstance(one, StoredMessage) else None
                    for one in loaded
                ]
        for name in (LOG, TX_LOG):
            if name in queues:
                records = queues[name].ready_count
                found[name] = await _read_log(running.amqp_address, name, records)
    return found


async def _read_log(
    address: tuple[str, int], name: str, records: int
) -> list[tuple[int, int] | None]:
    """From the first record on."""
    got: list[tuple[int, int] | None] = []
    client = await Client.connect(address, on_delivery=lambda _t, _r, b: got.append(read_body(b)))
    await client.consume(name, 10_000, arguments={"x-stream-offset": "first"})
    await until(lambda: len(got) >= records)
    client.close()
    return got


def _judge(
    found: dict[str, list[tuple[int, int] | None]], sure: list[tuple[bool, Id]], ledger: Marked
) -> list[str]:
    problems = []
    for queue, there in found.items():
        damaged = there.count(None)
        if damaged:
            problems.append(f"{damaged} damaged in {queue}")
        whole = [one for one in there if one is not None]
        if len(set(whole)) != len(whole) or whole != sorted(whole):
            problems.append(f"{queue} is not in order, or holds a message twice")
    torn = set(found.get(TX, ())) ^ set(found.get(TX_LOG, ()))
    if torn:
        problems.append(f"{len(torn)} transactions are in one place only")
    held = {(queue, *one) for queue, there in found.items() for one in there if one is not None}
    settled = {what for confirmed, what in sure if not confirmed}
    lost = {what for confirmed, what in sure if confirmed} - held - ledger.seen.keys()
    if lost:
        problems.append(f"{len(lost)} confirmed before the cut are lost, e.g. {min(lost)}")
    if settled & held:
        problems.append(f"{len(settled & held)} acked and synced before the cut are back")
    return problems
