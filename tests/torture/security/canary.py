"""Somebody who logs in again and again, at one broker after the other: `python -m ... PORT PORT`.

In a process of its own, so that it is the broker that is measured, and from an address of its own:
guesses wait behind guesses of their own address. When standard input ends it writes how many
seconds each log-in took, a line for each broker; one that was refused took forever.
"""

from __future__ import annotations

import asyncio
import sys

from tests.torture.process import BrokerProcess
from tests.torture.security.raw import log_in_seconds

ELSEWHERE = ("127.0.2.1", 0)
EVERY_SECONDS = 0.5


class Canary:
    """Seen from whoever has started it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *brokers: BrokerProcess) -> Canary:
        ports = [str(broker.address[1]) for broker in brokers]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.torture.security.canary", *ports,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(process)

    async def end(self) -> list[list[float]]:
        """The seconds at each broker."""
        said, _ = await self._process.communicate(b"")
        return [[float(word) for word in line.split()] for line in said.decode().splitlines()]


async def sing(ports: list[int]) -> list[list[float]]:
    """In turns, and each of them first as often as the others."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    seconds: list[list[float]] = [[] for _ in ports]
    order = list(range(len(ports)))
    while not ended.done() or not seconds[0]:
        for number in order:
            address = ("127.0.0.1", ports[number])
            seconds[number].append(await log_in_seconds(address, local_addr=ELSEWHERE))
        order.reverse()
        await asyncio.wait({ended}, timeout=EVERY_SECONDS)
    return seconds


if __name__ == "__main__":
    for took in asyncio.run(sing([int(port) for port in sys.argv[1:]])):
        print(*took)
