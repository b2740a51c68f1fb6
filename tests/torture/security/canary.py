"""A client that logs in again and again, to each broker in turn: `python -m ... PORT PORT`.

It runs in its own process, so that only the broker is measured, and from its own address, since
logins wait behind other logins from their address. When standard input ends it writes the seconds
of each login, one line per broker; a refused login took infinitely long.
"""

from __future__ import annotations

import asyncio
import sys

from tests.torture.process import BrokerProcess
from tests.torture.security.raw import login_seconds

LOCAL_ADDRESS = ("127.0.2.1", 0)
INTERVAL_SECONDS = 0.5


class Canary:
    """Controls the process."""

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
        """End the process; return the seconds of the logins at each broker."""
        output, _ = await self._process.communicate(b"")
        return [[float(word) for word in line.split()] for line in output.decode().splitlines()]


async def log_in_repeatedly(ports: list[int]) -> list[list[float]]:
    """Log in to all brokers in turn; each is first equally often."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    seconds: list[list[float]] = [[] for _ in ports]
    order = list(range(len(ports)))
    while not ended.done() or not seconds[0]:
        for number in order:
            address = ("127.0.0.1", ports[number])
            seconds[number].append(await login_seconds(address, local_addr=LOCAL_ADDRESS))
        order.reverse()
        await asyncio.wait({ended}, timeout=INTERVAL_SECONDS)
    return seconds


if __name__ == "__main__":
    for took in asyncio.run(log_in_repeatedly([int(port) for port in sys.argv[1:]])):
        print(*took)
