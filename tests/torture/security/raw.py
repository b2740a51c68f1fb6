"""A connection at the level of bytes: handshakes step by step, so that a test can stop anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

from pamqp import commands, frame

HEADER = b"AMQP\x00\x00\x09\x01"
DEADLINE_SECONDS = 60.0
_ABOUT: Any = {
    "capabilities": {"authentication_failure_close": True, "consumer_cancel_notify": True}
}


def start_ok(user: str = "guest", password: str = "guest") -> bytes:
    method = commands.Connection.StartOk(_ABOUT, "PLAIN", f"\0{user}\0{password}", "en_US")
    return frame.marshal(method, 0)


def tune_and_open(heartbeat: int = 60, vhost: str = "/") -> bytes:
    tune = commands.Connection.TuneOk(2047, 131072, heartbeat)
    return frame.marshal(tune, 0) + frame.marshal(commands.Connection.Open(vhost), 0)


class Raw:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.closed_with = 0
        """The code with which the broker refused the login."""

    @classmethod
    async def connect(cls, address: tuple[str, int], **options: Any) -> Raw:
        return cls(*await asyncio.open_connection(*address, limit=4096, **options))

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if not self._writer.is_closing():
                self._writer.write(data)

    async def next(self) -> Any:
        """The next method; None if the broker has closed the connection."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                head = await self._reader.readexactly(7)
                rest = await self._reader.readexactly(int.from_bytes(head[3:7], "big") + 1)
        except (OSError, asyncio.IncompleteReadError):
            return None
        return frame.unmarshal(head + rest)[2]

    async def log_in(self, user: str = "guest", password: str = "guest", vhost: str = "/") -> bool:
        """Do the handshake and open a channel; return False if refused."""
        self.send(HEADER)
        await self.next()
        self.send(start_ok(user, password))
        if not isinstance(await self.next(), commands.Connection.Tune):
            return False
        self.send(tune_and_open(vhost=vhost) + frame.marshal(commands.Channel.Open(), 1))
        opened = await self.next()
        if isinstance(opened, commands.Connection.Close):
            self.closed_with = int(opened.reply_code or 0)
            return False
        return opened is not None and isinstance(await self.next(), commands.Channel.OpenOk)

    async def wait_closed(self) -> float:
        """Seconds until the broker closes the connection."""
        began = time.monotonic()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                while await self._reader.read(65536):
                    pass
        return time.monotonic() - began

    def end_output(self) -> None:
        """Close the sending side only."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def drop(self) -> None:
        self._writer.transport.abort()


async def login_seconds(address: tuple[str, int], **options: Any) -> float:
    """Seconds of a login; infinite if it is refused."""
    began = time.monotonic()
    canary = await Raw.connect(address, **options)
    try:
        return time.monotonic() - began if await canary.log_in() else float("inf")
    finally:
        canary.drop()


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
