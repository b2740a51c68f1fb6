"""Links to a broker that can be cut without notice to either end.

`Cable` is a pair of network devices into its own namespace (needs root and `ip` of iproute2);
`Relay` is a proxy on loopback that stops forwarding.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_NEW_NETWORK = 0x40000000


class Link(Protocol):
    async def connect(self, address: tuple[str, int]) -> socket.socket: ...

    async def cut(self) -> None: ...

    async def repair(self) -> None: ...

    async def remove(self) -> None: ...


class Cable:
    """A virtual cable: 10.213.N.1 is here, 10.213.N.2 is in the namespace."""

    def __init__(self, number: int) -> None:
        self._space = f"leveret-{os.getpid()}-{number}"
        self._ends = f"lv{os.getpid()}a{number}", f"lv{os.getpid()}b{number}"
        self._net = f"10.213.{os.getpid() * 7 % 120 * 2 + number}"

    @property
    def host(self) -> str:
        return f"{self._net}.1"

    async def create(self) -> None:
        local_end, remote_end = self._ends
        await _ip("netns", "add", self._space)
        await _ip("link", "add", local_end, "type", "veth", "peer", "name", remote_end)
        await _ip("link", "set", remote_end, "netns", self._space)
        await _ip("addr", "add", f"{self.host}/30", "dev", local_end)
        await _ip("link", "set", local_end, "up")
        await self._inside("addr", "add", f"{self._net}.2/30", "dev", remote_end)
        await self.repair()

    async def connect(self, address: tuple[str, int]) -> socket.socket:
        return await asyncio.to_thread(self._connect, address)

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        """A socket belongs to the namespace of the thread that creates it."""
        sockets: list[socket.socket] = []

        def make() -> None:
            _enter(Path("/var/run/netns") / self._space)
            sockets.append(socket.create_connection(address, 20))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        sockets[0].setblocking(False)
        return sockets[0]

    async def cut(self) -> None:
        await self._inside("link", "set", self._ends[1], "down")

    async def repair(self) -> None:
        await self._inside("link", "set", self._ends[1], "up")
        await self._inside("route", "replace", "default", "via", self.host)

    async def remove(self) -> None:
        with suppress(OSError):
            await _ip("link", "del", self._ends[0])
        with suppress(OSError):
            await _ip("netns", "del", self._space)

    async def _inside(self, *words: str) -> None:
        await _ip("-n", self._space, *words)


def _enter(space: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(space, os.O_RDONLY)
    try:
        if libc.setns(file, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    finally:
        os.close(file)


async def _ip(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "ip", *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    error = (await process.communicate())[1].decode(errors="replace").strip()
    if process.returncode:
        raise OSError(f"ip {' '.join(words)}: {error}")


class Relay:
    """Copies bytes both ways until it is cut; then it keeps both sockets and copies nothing."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: list[socket.socket] = []

    async def connect(self, address: tuple[str, int]) -> socket.socket:
        ours, client = socket.socketpair()
        for sock in (ours, client):
            sock.setblocking(False)
        loop = asyncio.get_running_loop()
        far = socket.socket()
        far.setblocking(False)
        await loop.sock_connect(far, address)
        self._sockets += (ours, far)
        for source, sink in ((ours, far), (far, ours)):
            self._tasks.add(asyncio.create_task(_copy(source, sink)))
        return client

    async def cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def repair(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    async def remove(self) -> None:
        await self.cut()
        await self.repair()


async def _copy(source: socket.socket, sink: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await loop.sock_recv(source, 65536):
            await loop.sock_sendall(sink, data)
