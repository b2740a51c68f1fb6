"""R-07: after a kill, messages acked and synced are not redelivered; others are, with the flag."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from pamqp import commands

from tests.support.polling import wait_until_async
from tests.torture.checker import Ledger, make_body
from tests.torture.client import PROPERTIES, Client
from tests.torture.crashes import problems_of
from tests.torture.load import Load, LoadSpec
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

QUEUE = "acked"
SENT, TAKEN = 400, 200


async def kill_after_acks(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    rng, ledger = random.Random(seed), Ledger()
    broker = BrokerProcess(directory)
    load = Load(LoadSpec(queues=(QUEUE,)), ledger)
    synced = 0
    for done in range(cycles):
        await broker.start()
        await _publish(broker.address, ledger)
        synced += await _ack_some(broker.address, ledger, rng)
        await broker.kill()
        progress(done + 1, cycles)
        if done % 4 == 3:  # empty the queue, or every start begins with the same messages
            await broker.start()
            await load.drain(broker.address)
            await broker.kill()
    await broker.start()
    await load.drain(broker.address)
    await broker.stop()
    verdict = ledger.verdict()
    figures = f"{cycles} kills, {synced} acked and synced before one; {verdict}"
    problems = problems_of(verdict)
    if not synced:
        problems.append("nothing was acked")
    return Outcome("R-07", "kill -9 after acks and a synchronous call", figures, tuple(problems))


async def _publish(address: tuple[str, int], ledger: Ledger) -> None:
    done = asyncio.Event()

    def confirmed(tag: int, _multiple: bool, _accepted: bool) -> None:
        if tag == SENT:
            done.set()

    client = await Client.connect(address, on_confirm=confirmed)
    await client.declare(QUEUE)
    await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    for _ in range(SENT):
        sequence = ledger.will_send(QUEUE, 1)
        client.publish("", QUEUE, make_body(1, sequence, 200), PROPERTIES["persistent"])
    await asyncio.wait_for(done.wait(), 60)
    for sequence in range(ledger.sent[QUEUE, 1] - SENT + 1, ledger.sent[QUEUE, 1] + 1):
        ledger.was_confirmed(QUEUE, 1, sequence)
    client.close()


async def _ack_some(address: tuple[str, int], ledger: Ledger, rng: random.Random) -> int:
    """Ack some one by one and a range at once, sync, then ack a few more without a sync."""
    taken: list[tuple[int, bytes]] = []

    def delivered(tag: int, redelivered: bool, body: bytes) -> None:
        ledger.was_delivered(QUEUE, body, redelivered)
        taken.append((tag, body))

    client = await Client.connect(address, on_delivery=delivered)
    await client.consume(QUEUE, TAKEN)
    await wait_until_async(lambda: len(taken) >= TAKEN)
    run = rng.randrange(0, TAKEN // 2)
    chosen = [pair for pair in taken[run:TAKEN] if rng.random() < 0.5]
    if run:
        client.ack(taken[run - 1][0], True)
    late = chosen[: len(chosen) // 4]
    for tag, _ in chosen[len(late) :]:
        client.ack(tag, False)
    await client.sync()
    for _, body in (*taken[:run], *chosen[len(late) :]):
        ledger.was_settled(QUEUE, body)
    for tag, _ in late:
        client.ack(tag, False)
    await asyncio.sleep(rng.choice((0.0, 0.0, 0.005, 0.02)))
    client.close()
    return run + len(chosen) - len(late)
