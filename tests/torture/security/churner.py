"""Clients that come and go and never wait: `python -m ... HOST PORT`.

Each logs in, opens a channel, declares a queue of its own and is gone without a word, again and
again, in a process of their own until standard input ends; then it writes how many there were.
"""

from __future__ import annotations

import asyncio
import sys

from pamqp import commands, frame

from tests.torture.security.raw import Raw

CLIENTS = 4
_DECLARE = frame.marshal(commands.Queue.Declare(exclusive=True), 1)


async def main() -> None:
    host, port = sys.argv[1:]
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    address = (host, int(port))
    counts = await asyncio.gather(*(_come_and_go(address, ended) for _ in range(CLIENTS)))
    print(sum(counts), flush=True)


async def _come_and_go(address: tuple[str, int], ended: asyncio.Task[str]) -> int:
    count = 0
    while not ended.done():
        one = await Raw.connect(address)
        if await one.log_in():
            one.send(_DECLARE)
            count += isinstance(await one.next(), commands.Queue.DeclareOk)
        one.drop()
    return count


if __name__ == "__main__":
    asyncio.run(main())
