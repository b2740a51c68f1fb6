"""R-38: OpenSSL's own client requests new keys (TLS 1.3 KeyUpdate) without end.

`openssl s_client` takes each read of its input for a command letter or for bytes to send, so its
input is a socket that keeps writes separate. Its output goes through a relay that can hold bytes
back: a client that asks and does not read.
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
_UNASKED, _ASKED, _QUIT = b"k", b"K", b"Q"
_ASK = frame.marshal(commands.Basic.Qos(), 1)
_ANSWER = frame.marshal(commands.Basic.QosOk(), 1)


async def ask_for_keys(directory: Path, address: Address, updates: int) -> int:
    """Request `updates` new keys in each of three ways; return the total.

    An AMQP request is sent between two of them, because OpenSSL sends its new keys with the next
    bytes it has to send. In the end every request must have been answered.
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
                await client.read_until(_ANSWER * count)
        sent, received = _new_keys(messages)
        if sent != updates or bool(received) != (kind == _ASKED):
            raise AssertionError(f"{sent} of {updates} new keys were sent, {received} received")
        done += sent
    return done


def _new_keys(messages: Path) -> tuple[int, int]:
    """How many key updates OpenSSL reports as sent and received."""
    text = messages.read_text(encoding="utf-8")
    sent, received = (
        len(re.findall(f"^{arrow} .*KeyUpdate$", text, re.M)) for arrow in (">>>", "<<<")
    )
    return sent, received


class _Client:
    def __init__(self, address: Address, messages: Path) -> None:
        self._address = address
        self._messages = messages
        self.may_read = asyncio.Event()
        self.may_read.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A client that is logged in, with a channel."""
        self._input, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._input.setblocking(False)
        async with _delaying_relay(self._address, self.may_read) as relay:
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
                await self.read_until(_ANSWER)
                yield
                await self.send(_QUIT)
                async with asyncio.timeout(SECONDS):
                    await process.wait()

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            await asyncio.get_running_loop().sock_sendall(self._input, data)

    async def read_until(self, expected: bytes) -> None:
        """Read until the input ends with this; other frames may come first."""
        received = b""
        while not received.endswith(expected):
            async with asyncio.timeout(SECONDS):
                data_read = await self._output.read(65536)
            if not data_read:
                raise AssertionError(f"the connection ended before {expected[-30:]!r}")
            received += data_read


@contextlib.contextmanager
def _ended(process: asyncio.subprocess.Process) -> Iterator[None]:
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()


@contextlib.asynccontextmanager
async def _delaying_relay(address: Address, may_answer: asyncio.Event) -> AsyncIterator[Address]:
    """The port of a relay to `address` that holds answers back until the event is set."""
    always = asyncio.Event()
    always.set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, onward = await asyncio.open_connection(*address, limit=4096)
        await asyncio.gather(_copy(reader, onward, always), _copy(answers, writer, may_answer))

    server = await asyncio.start_server(relay, "127.0.0.1", limit=4096)
    async with server:
        yield server.sockets[0].getsockname()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_copy: asyncio.Event
) -> None:
    with contextlib.closing(writer), contextlib.suppress(OSError):
        while data := await reader.read(4096):
            await may_copy.wait()
            writer.write(data)
            await writer.drain()
