"""C-delay: SIGKILL while messages are delayed and deduplicated; each is delivered once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from pamqp import commands
from pamqp.header import ContentHeader

from tests.support.polling import wait_until_async, wait_until_reached
from tests.torture.client import Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

EXCHANGE, QUEUE = "later", "once"
_NUMBER = struct.Struct(">Q")


class Publisher:
    """Sends every number until it is confirmed; numbers left open by a kill are sent again."""

    def __init__(self) -> None:
        self.last = 0
        self.open: set[int] = set()
        self.confirmed: set[int] = set()

    async def run(self, address: tuple[str, int], rng: random.Random, count: int) -> None:
        sent: list[int] = []
        upto = 0

        def confirmed(tag: int, multiple: bool, is_ack: bool) -> None:
            nonlocal upto
            chosen = sent[upto:tag] if multiple else sent[tag - 1 : tag]
            upto = max(upto, tag) if multiple else upto
            if is_ack:
                self.confirmed.update(chosen)
                self.open.difference_update(chosen)

        with contextlib.suppress(ConnectionGone, ConnectionError, TimeoutError):
            client = await Client.connect(address, on_confirm=confirmed)
            await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
            again = sorted(self.open)
            fresh = range(self.last + 1, self.last + count + 1)
            self.last += count
            for number in (*again, *fresh):
                sent.append(number)
                self.open.add(number)
                _publish(client, number, rng.randrange(1, 300))
                if number % 50 == 0:
                    await asyncio.sleep(0.005)
            await client.gone.wait()


def _publish(client: Client, number: int, delay: int) -> None:
    headers: dict[str, Any] = {"x-delay": delay, "x-deduplication-header": f"n{number}"}
    properties = commands.Basic.Properties(delivery_mode=2, headers=headers)
    encoded = ContentHeader(0, 8, properties).marshal()[12:]
    client.publish(EXCHANGE, QUEUE, _NUMBER.pack(number), encoded)


async def kill_while_delaying(
    directory: Path, cycles: int, seed: int, per_cycle: int = 1_000, progress: Progress = silent
) -> Outcome:
    rng, broker, publisher = random.Random(seed), BrokerProcess(directory), Publisher()
    for done in range(cycles):
        await broker.start()
        await _declare(broker.address)
        before = len(publisher.confirmed)
        job = asyncio.create_task(publisher.run(broker.address, rng, per_cycle))
        await wait_until_reached(lambda: len(publisher.confirmed), before + 1)
        await asyncio.sleep(rng.uniform(0.1, 0.6))
        await broker.kill()
        await job
        progress(done + 1, cycles)
    await broker.start()
    received = await _take(broker.address, len(publisher.confirmed))
    await broker.stop()
    lost = len(publisher.confirmed - received.keys())
    doubled = sum(count > 1 for count in received.values())
    figures = (
        f"{cycles} kills, {publisher.last} sent, {len(publisher.confirmed)} confirmed; "
        f"lost {lost}, twice {doubled}"
    )
    problems = [f"{lost} lost"] if lost else []
    problems += [f"{doubled} delivered twice"] if doubled else []
    if not publisher.confirmed:
        problems.append("nothing was confirmed")
    return Outcome("C-delay", "kill -9 with delayed messages", figures, tuple(problems))


async def _declare(address: tuple[str, int]) -> None:
    client = await Client.connect(address)
    await client.call(
        commands.Exchange.Declare(
            exchange=EXCHANGE,
            exchange_type="x-delayed-message",
            durable=True,
            arguments={"x-delayed-type": "direct"},
        ),
        commands.Exchange.DeclareOk,
    )
    await client.declare(
        QUEUE, arguments={"x-message-deduplication": True, "x-cache-size": 1_000_000}
    )
    bind = commands.Queue.Bind(queue=QUEUE, exchange=EXCHANGE, routing_key=QUEUE)
    await client.call(bind, commands.Queue.BindOk)
    client.close()


async def _take(address: tuple[str, int], least: int) -> Counter[int]:
    numbers: Counter[int] = Counter()

    def delivered(_tag: int, _redelivered: bool, body: bytes) -> None:
        numbers[_NUMBER.unpack(body)[0]] += 1

    client = await Client.connect(address, on_delivery=delivered)
    await client.consume(QUEUE, 0, no_ack=True)
    with contextlib.suppress(AssertionError):
        await wait_until_async(lambda: len(numbers) >= least)
    await asyncio.sleep(0.5)  # duplicates would arrive now
    client.close()
    return numbers
