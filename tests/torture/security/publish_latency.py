"""A client that publishes and consumes one message at a time: `python -m ... HOST PORT TRIES`.

It runs in its own process, so that only the broker is measured. Writes the p99 of the time from a
publish to its delivery, in seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time

from pamqp import commands

from tests.torture.client import PROPERTIES, Client
from tests.torture.security.raw import percentile


async def publish_latency_p99(address: tuple[str, int], tries: int) -> float:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.security.publish_latency", address[0], str(address[1]),
        str(tries), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    return float(output)


async def measure(address: tuple[str, int], tries: int) -> float:
    delivered = asyncio.Event()
    client = await Client.connect(address, on_delivery=lambda *_: delivered.set())
    declare = commands.Queue.Declare(queue="", exclusive=True)
    queue = (await client.call(declare, commands.Queue.DeclareOk)).queue
    await client.consume(queue, 0, no_ack=True)
    seconds = []
    for _ in range(tries):
        delivered.clear()
        began = time.monotonic()
        client.publish("", queue, b"x", PROPERTIES["transient"])
        await delivered.wait()
        seconds.append(time.monotonic() - began)
    client.close()
    return percentile(seconds, 0.99)


if __name__ == "__main__":
    print(asyncio.run(measure((sys.argv[1], int(sys.argv[2])), int(sys.argv[3]))))
