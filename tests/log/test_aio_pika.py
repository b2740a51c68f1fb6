"""aio-pika on a log: streams, partitions and groups with nothing but arguments."""

from __future__ import annotations

import asyncio

import aio_pika
import pika
import pytest

from leveret.launch import RunningBroker, in_process_settings
from leveret.model.partitioning import partition_of
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


async def test_group_shares_the_partitions_of_a_log(connection, running):
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
    await asyncio.wait_for(done.wait(), 60)
    assert [len({partition for partition, _ in mine}) for mine in seen] == [1, 1, 1]
    for mine in seen:
        assert [offset for _, offset in mine] == list(range(30))


async def test_all_clients_choose_the_same_partition_for_a_key(connection, running):
    """Different clients and new connections choose the same partition."""
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=100)
    arguments = {**STREAM, "x-partitions": 3}
    queue = await channel.declare_queue("orders", durable=True, arguments=arguments)
    exchange = await channel.get_exchange("orders")
    keys = [f"key-{number}" for number in range(20)]
    for key in keys:
        await exchange.publish(aio_pika.Message(b"aio-pika"), key)
    await asyncio.to_thread(publish_with_pika, running.url, keys)
    partitions: dict[str, set[int]] = {key: set() for key in keys}
    async with queue.iterator(arguments={"x-stream-offset": "first"}) as messages:
        for _ in range(2 * len(keys)):
            message = await asyncio.wait_for(anext(messages), 60)
            await message.ack()
            partitions[message.routing_key].add(message.headers["x-partition"])
    assert partitions == {key: {partition_of(key.encode(), 3)} for key in keys}


def publish_with_pika(url, keys):
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for key in keys:
            channel.basic_publish("orders", key, b"pika")
