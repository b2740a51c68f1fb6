"""Clients that connect and disconnect without a pause: `python -m ... HOST PORT`.

Each logs in, opens a channel, declares an exclusive queue and drops the connection, again and again
until standard input ends; then the process writes how many connections there were.
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
    counts = await asyncio.gather(*(_connect_repeatedly(address, ended) for _ in range(CLIENTS)))
    print(sum(counts), flush=True)


async def _connect_repeatedly(address: tuple[str, int], ended: asyncio.Task[str]) -> int:
    count = 0
    while not ended.done():
        connection = await Raw.connect(address)
        if await connection.log_in():
            connection.send(_DECLARE)
            count += isinstance(await connection.next(), commands.Queue.DeclareOk)
        connection.drop()
    return count


if __name__ == "__main__":
    asyncio.run(main())
