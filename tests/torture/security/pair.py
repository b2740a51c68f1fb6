"""Somebody who publishes and consumes, one message at a time: `python -m ... HOST PORT TRIES`.

In a process of its own, so that it is the broker that is measured and not whoever does much else
beside it. Writes the p99 of the time from a publish to its delivery, in seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time

from pamqp import commands

from tests.torture.client import PROPERTIES, Client
from tests.torture.security.raw import percentile


async def seconds_of_a_pair(address: tuple[str, int], tries: int) -> float:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.torture.security.pair", address[0], str(address[1]),
        str(tries), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()
    return float(said)


async def measure(address: tuple[str, int], tries: int) -> float:
    came = asyncio.Event()
    client = await Client.connect(address, on_delivery=lambda *_: came.set())
    declare = commands.Queue.Declare(queue="", exclusive=True)
    queue = (await client.call(declare, commands.Queue.DeclareOk)).queue
    await client.consume(queue, 0, no_ack=True)
    seconds = []
    for _ in range(tries):
        came.clear()
        began = time.monotonic()
        client.publish("", queue, b"x", PROPERTIES["transient"])
        await came.wait()
        seconds.append(time.monotonic() - began)
    client.close()
    return percentile(seconds, 0.99)


if __name__ == "__main__":
    print(asyncio.run(measure((sys.argv[1], int(sys.argv[2])), int(sys.argv[3]))))
