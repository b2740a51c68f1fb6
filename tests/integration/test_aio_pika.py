"""aio-pika: robust connections, and its RPC and worker patterns."""

from __future__ import annotations

import asyncio
import dataclasses

import aio_pika
import pytest
from aio_pika import DeliveryMode, Message
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError
from aio_pika.patterns import RPC, Master

from tests.support.proxy import running_proxy


@pytest.fixture
async def connection(url):
    connection = await aio_pika.connect(url)
    async with connection:
        yield connection


async def test_publish_and_iterate(connection):
    channel = await connection.channel()  # confirms are on by default
    await channel.set_qos(prefetch_count=10)
    queue = await channel.declare_queue(exclusive=True)
    for number in range(100):
        message = Message(str(number).encode(), delivery_mode=DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, queue.name)
    seen = []
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                seen.append(int(message.body))
            if len(seen) == 100:
                break
    assert seen == list(range(100))


async def test_unroutable_publish_fails(connection):
    channel = await connection.channel(on_return_raises=True)
    exchange = await channel.get_exchange("amq.topic")
    with pytest.raises(DeliveryError):
        await exchange.publish(Message(b"unroutable"), "nowhere")


async def test_message_is_requeued_when_processing_fails(connection):
    channel = await connection.channel()
    queue = await channel.declare_queue(exclusive=True)
    await channel.default_exchange.publish(Message(b"again"), queue.name)
    first = await queue.get(timeout=30)
    with pytest.raises(RuntimeError):
        async with first.process(requeue=True):
            raise RuntimeError
    second = await queue.get(timeout=30)
    assert second.redelivered
    await second.ack()


async def test_topic_and_headers_exchanges(connection, name):
    channel = await connection.channel()
    queue = await channel.declare_queue(exclusive=True)
    topic = await channel.declare_exchange(name(), "topic", auto_delete=True)
    headers = await channel.declare_exchange(name(), "headers", auto_delete=True)
    await queue.bind(topic, "a.*.c")
    await queue.bind(headers, arguments={"x-match": "any", "kind": "hare", "size": 2})
    await topic.publish(Message(b"topic"), "a.b.c")
    await headers.publish(Message(b"headers", headers={"kind": "fox", "size": 2}), "")
    assert [(await queue.get(timeout=30, no_ack=True)).body for _ in range(2)] == [
        b"topic",
        b"headers",
    ]


async def test_channel_error_is_raised(connection, name):
    channel = await connection.channel()
    queue = await channel.declare_queue(name(), auto_delete=True)
    with pytest.raises(ChannelPreconditionFailed):
        await channel.declare_queue(queue.name, durable=True)
    other = await connection.channel()
    await other.queue_delete(queue.name)


async def test_transaction_is_committed_or_rolled_back(connection):
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue(exclusive=True)
    async with channel.transaction():
        await channel.default_exchange.publish(Message(b"kept"), queue.name)
    with pytest.raises(RuntimeError):
        async with channel.transaction():
            await channel.default_exchange.publish(Message(b"dropped"), queue.name)
            raise RuntimeError
    assert (await queue.get(timeout=30, no_ack=True)).body == b"kept"
    assert await queue.get(timeout=30, fail=False) is None


async def test_robust_connection_restores_its_consumer(broker, name):
    queue_name, exchange_name = name(), name()
    async with running_proxy(broker.host, broker.port) as proxy:
        target = dataclasses.replace(broker, host="127.0.0.1", port=proxy.port)
        connection = await aio_pika.connect_robust(target.url, reconnect_interval=0.05)
        async with connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(exchange_name, "fanout", auto_delete=True)
            # Exclusive: deleted with the lost connection, so it must be declared and bound again.
            queue = await channel.declare_queue(queue_name, exclusive=True)
            await queue.bind(exchange)
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def on_message(message):
                async with message.process():
                    received.put_nowait(message.body)

            await queue.consume(on_message)
            await exchange.publish(Message(b"before"), "")
            assert await asyncio.wait_for(received.get(), 30) == b"before"

            reconnected = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: reconnected.set())
            proxy.cut()
            await asyncio.wait_for(reconnected.wait(), 30)
            await channel.ready()
            await exchange.publish(Message(b"after"), "")
            assert await asyncio.wait_for(received.get(), 30) == b"after"
            assert proxy.accepted >= 2


async def test_rpc_pattern(url):
    async def multiply(*, x, y):
        if x == 0:
            raise ValueError("zero")
        return x * y

    async with await aio_pika.connect_robust(url) as server:
        server_rpc = await RPC.create(await server.channel())
        await server_rpc.register("multiply", multiply, auto_delete=True)
        async with await aio_pika.connect_robust(url) as client:
            client_rpc = await RPC.create(await client.channel())
            products = await asyncio.gather(
                *(client_rpc.proxy.multiply(x=number, y=10) for number in range(1, 20))
            )
            assert products == [number * 10 for number in range(1, 20)]
            with pytest.raises(ValueError, match="zero"):
                await client_rpc.proxy.multiply(x=0, y=1)
            await client_rpc.close()
        await server_rpc.close()


async def test_master_worker_pattern(url, name):
    task_name = name()
    done: asyncio.Queue[int] = asyncio.Queue()

    async def work(*, number):
        await done.put(number)

    async with await aio_pika.connect_robust(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)
        master = Master(channel)
        worker = await master.create_worker(task_name, work, auto_delete=True)
        for number in range(10):
            await master.create_task(task_name, {"number": number})
        finished = {await asyncio.wait_for(done.get(), 30) for _ in range(10)}
        assert finished == set(range(10))
        await worker.close()
