"""aio-pika on a log: streams, partitions and groups with nothing but arguments."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest

from leveret.launch import RunningBroker, in_process_settings
from tests.log.conftest import STREAM


@pytest.fixture
async def running(tmp_path):
    async with RunningBroker(in_process_settings(data_dir=tmp_path / "data")) as running:
        yield running


@pytest.fixture
async def connection(running):
    async with await aio_pika.connect(running.url) as connection:
        yield connection


async def test_replay_twice(connection):
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=50)
    queue = await channel.declare_queue("log", durable=True, arguments=STREAM)
    for number in range(200):
        await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), "log")
    for _ in range(2):
        seen = []
        async with queue.iterator(arguments={"x-stream-offset": "first"}) as messages:
            async for message in messages:
                await message.ack()
                seen.append((int(message.body), message.headers["x-stream-offset"]))
                if len(seen) == 200:
                    break
        assert seen == [(number, number) for number in range(200)]


async def test_a_group_shares_a_partitioned_log(connection, running):
    channel = await connection.channel()
    await channel.declare_queue("orders", durable=True, arguments={**STREAM, "x-partitions": 3})
    exchange = await channel.get_exchange("orders")
    seen: list[list[tuple[int, int]]] = [[], [], []]
    done = asyncio.Event()

    async def join(number):
        mine = await connection.channel()
        await mine.set_qos(prefetch_count=10)
        queue = await mine.get_queue("orders")

        async def on_message(message):
            headers = message.headers
            seen[number].append((headers["x-partition"], headers["x-stream-offset"]))
            await message.ack()
            if sum(map(len, seen)) == 90:
                done.set()

        arguments = {"x-group": "G", "x-stream-offset": "first"}
        await queue.consume(on_message, arguments=arguments)

    for number in range(3):
        await join(number)
    for number in range(90):
        await exchange.publish(aio_pika.Message(b"%d" % number), "")
    await asyncio.wait_for(done.wait(), 20)
    assert [len({partition for partition, _ in mine}) for mine in seen] == [1, 1, 1]
    for mine in seen:
        assert [offset for _, offset in mine] == list(range(30))
