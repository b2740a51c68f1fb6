"""A restart reads journals and the head of each queue, and nothing else of the content."""

from __future__ import annotations

from pathlib import Path

from leveret.launch import RunningBroker, in_process_settings
from tests.support.polling import wait_until_async
from tests.torture.client import PROPERTIES, Client

QUEUES, MESSAGES = 20, 30


def settings(data: Path):
    return in_process_settings(data_dir=data)


async def test_content_is_read_when_somebody_consumes_it(tmp_path: Path):
    async with RunningBroker(settings(tmp_path)) as running:
        client = await Client.connect(running.amqp_address)
        for number in range(QUEUES):
            await client.declare(f"q{number}")
            client.publish_all("", f"q{number}", [b"x"] * MESSAGES, PROPERTIES["persistent"])
        await client.sync()
        client.close()
    async with RunningBroker(settings(tmp_path)) as running:
        queues = running.broker.vhosts["/"].queues
        await wait_until_async(lambda: all(queue.oldest_ready_ms() for queue in queues.values()))
        await running.broker.topology.read_heads()
        stats = [queue.stats() for queue in queues.values()]
        in_memory = [each.ready_in_memory for each in stats if each is not None]
        assert in_memory == [1] * QUEUES
        assert all(queue.ready_count == MESSAGES for queue in queues.values())
        bodies: list[bytes] = []
        client = await Client.connect(
            running.amqp_address, on_delivery=lambda _tag, _again, body: bodies.append(body)
        )
        await client.consume("q3", 0)
        await wait_until_async(lambda: len(bodies) == MESSAGES)
        client.close()


async def test_stored_bindings_are_not_stored_again(tmp_path: Path):
    from pamqp import commands

    async with RunningBroker(settings(tmp_path)) as running:
        client = await Client.connect(running.amqp_address)
        await client.declare("q")
        bind = commands.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.#")
        await client.call(bind, commands.Queue.BindOk)
        client.close()
    async with RunningBroker(settings(tmp_path)) as running:
        assert len(list(running.broker.vhosts["/"].bindings())) == 1
        assert running.broker.store.batch_number == running.broker.store.committed == 0
