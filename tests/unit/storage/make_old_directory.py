"""Makes a data directory with an older version of the broker, for `test_packs_migration`.

PYTHONPATH=<checkout of the old version> python make_old_directory.py leveret-0.1.0.tar.xz

A little of everything: messages of many sizes, three queues whose history keeps different things,
settled and unsettled messages, a large body, bindings, and a log with a consumer group. Uses only
what every version has. Takes up to two minutes: the broker removes bodies once in a minute.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tarfile
import tempfile
from pathlib import Path

import aio_pika
import httpx

from leveret.launch import RunningBroker, in_process_settings

HISTORY = {"orders": "full", "audit": "metadata", "scratch": "off"}
MESSAGES, TAKEN, RECORDS = 240, 90, 50
LARGE = 4 * 1024 * 1024 + 77


async def fill(directory: Path) -> None:
    settings = in_process_settings(data_dir=directory, http_enabled=True)
    async with RunningBroker(settings) as running:
        await set_policies(running.http_url)
        async with await aio_pika.connect(running.url) as connection:
            channel = await connection.channel()
            await publish(channel)
            await take(channel)
            await make_log(channel)
            await wait_for_retention(directory / "leveret.db")
            queue = await channel.get_queue("orders")
            await queue.get(no_ack=False)  # delivered once when the broker stops


async def set_policies(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, auth=("guest", "guest"), timeout=60) as client:
        for queue, history in HISTORY.items():
            policy = {"pattern": f"^{queue}$", "definition": {"history": history}}
            answer = await client.put(f"/api/policies/%2F/{queue}", json=policy)
            answer.raise_for_status()


async def publish(channel: aio_pika.abc.AbstractChannel) -> None:
    exchange = await channel.declare_exchange("events", "topic", durable=True)
    for name in HISTORY:
        queue = await channel.declare_queue(name, durable=True)
        await queue.bind(exchange, f"*.{name}.#")
    for number in range(MESSAGES):
        for name in HISTORY:
            message = aio_pika.Message(
                b"%d:" % number * (number * number // 30),
                delivery_mode=2,
                message_id=f"{name}-{number}",
                headers={"number": number} if number % 3 else None,
                priority=number % 5 or None,
            )
            key = f"eu.{name}.{number % 4}" if number % 2 else name
            await (exchange if number % 2 else channel.default_exchange).publish(message, key)
    everywhere = await channel.declare_exchange("everywhere", "fanout", durable=True)
    for name in HISTORY:
        await (await channel.get_queue(name)).bind(everywhere)
    for body in (b"", b"\x00\xce\xff", b"x" * 70_000):
        await everywhere.publish(aio_pika.Message(body, delivery_mode=2), "any")
    await channel.default_exchange.publish(
        aio_pika.Message(b"large" * (LARGE // 5), delivery_mode=2), "orders"
    )


async def take(channel: aio_pika.abc.AbstractChannel) -> None:
    for name in HISTORY:
        queue = await channel.get_queue(name)
        for _ in range(TAKEN):
            await (await queue.get()).ack()


async def make_log(channel: aio_pika.abc.AbstractChannel) -> None:
    log = await channel.declare_queue("clicks", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(RECORDS):
        message = aio_pika.Message(b"click %d" % number, delivery_mode=2)
        await channel.default_exchange.publish(message, "clicks")
    await channel.set_qos(prefetch_count=RECORDS)
    arguments = {"x-group": "readers", "x-stream-offset": "first"}
    async with log.iterator(arguments=arguments) as records:
        async for record in records:
            await record.ack()
            if record.body == b"click %d" % (RECORDS - 1):
                break


async def wait_for_retention(database: Path) -> None:
    """Until bodies that history does not keep are gone."""
    removed = "SELECT count(*) FROM messages WHERE body IS NULL AND size < 100000"
    async with asyncio.timeout(300):
        while True:
            connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
            (count,) = connection.execute(removed).fetchone()
            connection.close()
            if count:
                return
            await asyncio.sleep(1)


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "data"
        asyncio.run(fill(directory))
        with tarfile.open(target, "w:xz") as archive:
            archive.add(directory, "data")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
