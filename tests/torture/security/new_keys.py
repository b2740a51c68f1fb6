"""R-38: OpenSSL's own client asks for new keys (TLS 1.3 KeyUpdate) without end.

`openssl s_client` takes each read of its input for one letter of command or for octets to send, so
its input is a socket that keeps what is written apart. What it is sent goes through a relay, which
can hold it back: a client that asks and does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from pamqp import commands, frame

from tests.torture.security.raw import HEADER, start_ok, tune_and_open

Address = tuple[str, int]
AT_ONCE = 100
SECONDS = 60.0
_UNASKED, _ASKED, _LEAVE = b"k", b"K", b"Q"
_ASK = frame.marshal(commands.Basic.Qos(), 1)
_ANSWER = frame.marshal(commands.Basic.QosOk(), 1)


async def ask_for_keys(directory: Path, address: Address, updates: int) -> int:
    """Ask for new keys so often in each of three ways; how often that was in all.

    Between two of them there is a request of AMQP, since OpenSSL sends its own new keys with the
    next thing it has to send. In the end every request must have been answered.
    """
    done = 0
    for kind, unread in ((_UNASKED, False), (_ASKED, False), (_ASKED, True)):
        messages = directory / f"new-keys-{kind.decode()}-{unread}"
        client = _Client(address, messages)
        async with client.running():
            at_once = updates if unread else AT_ONCE
            for first in range(0, updates, at_once):
                count = min(at_once, updates - first)
                if unread:
                    client.may_read.clear()
                for _ in range(count):
                    await client.send(kind)
                    await client.send(_ASK)
                client.may_read.set()
                await client.hear(_ANSWER * count)
        sent, came = _new_keys(messages)
        if sent != updates or bool(came) != (kind == _ASKED):
            raise AssertionError(f"{sent} of {updates} new keys were sent, {came} came back")
        done += sent
    return done


def _new_keys(messages: Path) -> tuple[int, int]:
    """How many OpenSSL says it has sent and received."""
    said = messages.read_text(encoding="utf-8")
    sent, came = (len(re.findall(f"^{way} .*KeyUpdate$", said, re.M)) for way in (">>>", "<<<"))
    return sent, came


class _Client:
    def __init__(self, address: Address, messages: Path) -> None:
        self._address = address
        self._messages = messages
        self.may_read = asyncio.Event()
        self.may_read.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Logged in, with a channel."""
        self._input, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._input.setblocking(False)
        async with _relay(self._address, self.may_read) as relay:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    "openssl", "s_client", "-connect", "{}:{}".format(*relay), "-tls1_3", "-brief",
                    "-msg", "-msgfile", str(self._messages), stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
            assert process.stdout is not None
            self._output = process.stdout
            with self._input, _ended(process):
                opening = tune_and_open() + frame.marshal(commands.Channel.Open(), 1)
                await self.send(HEADER + start_ok() + opening + _ASK)
                await self.hear(_ANSWER)
                yield
                await self.send(_LEAVE)
                async with asyncio.timeout(SECONDS):
                    await process.wait()

    async def send(self, octets: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            await asyncio.get_running_loop().sock_sendall(self._input, octets)

    async def hear(self, wanted: bytes) -> None:
        """Read until this is the last that came; other frames may come first."""
        heard = b""
        while not heard.endswith(wanted):
            async with asyncio.timeout(SECONDS):
                said = await self._output.read(65536)
            if not said:
                raise AssertionError(f"the connection ended, {wanted[-30:]!r} was awaited")
            heard += said


@contextlib.contextmanager
def _ended(process: asyncio.subprocess.Process) -> Iterator[None]:
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()


@contextlib.asynccontextmanager
async def _relay(address: Address, may_answer: asyncio.Event) -> AsyncIterator[Address]:
    """Where a client finds who is at `address`, whose answers wait until they may come."""
    always = asyncio.Event()
    always.set()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, onward = await asyncio.open_connection(*address, limit=4096)
        await asyncio.gather(_copy(reader, onward, always), _copy(answers, writer, may_answer))

    server = await asyncio.start_server(meet, "127.0.0.1", limit=4096)
    async with server:
        yield server.sockets[0].getsockname()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may: asyncio.Event
) -> None:
    with contextlib.closing(writer), contextlib.suppress(OSError):
        while octets := await reader.read(4096):
            await may.wait()
            writer.write(octets)
            await writer.drain()
