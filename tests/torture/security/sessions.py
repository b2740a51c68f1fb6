"""R-33's material: sessions of real clients, recorded, and phrases that the grammar allows.

pika and aio-pika are recorded when a run begins, on their way to a broker. Phrases are whole client
methods whose arguments are at the edges of what their types, or their meaning, allow; each has a
channel of its own where it would else be passed over because an earlier one closed it.
"""

from __future__ import annotations

import asyncio
import random
import struct
from contextlib import suppress
from typing import Any

import aio_pika
import pika
from pamqp import commands, frame

from amqp_server import codec
from tests.support import wire
from tests.torture.security.round_trips import CLIENT, made

_TUNE_OK, _TUNE_OK_SIZE = b"\x00\x0a\x00\x1f", 20
_OPEN_CHANNEL = b"\x00\x14\x00\x0a"
NAME = "recorded"


def tune_ok(octets: bytes) -> bytes:
    """The frame of a session in which heartbeats are agreed on."""
    at = octets.index(_TUNE_OK) - 7
    return octets[at : at + _TUNE_OK_SIZE]


def logged_in(octets: bytes) -> bytes:
    """A session until its first channel is open."""
    return octets[: octets.index(b"\xce", octets.index(_OPEN_CHANNEL)) + 1]


# Recorded ----------------------------------------------------------------------------------------


async def record(address: tuple[str, int]) -> tuple[bytes, bytes]:
    """What pika and aio-pika say in their lives."""
    return await _tape(address, _by_pika), await _tape(address, _by_aio_pika)


async def _tape(address: tuple[str, int], live: Any) -> bytes:
    said = bytearray()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, there = await asyncio.open_connection(*address)
        await asyncio.gather(_copy(reader, there, said), _copy(back, writer, bytearray()))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    await live(server.sockets[0].getsockname()[1])
    server.close()
    return bytes(said)


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tape: bytearray
) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            tape += data
            writer.write(data)
    writer.close()


async def _by_pika(port: int) -> None:
    await asyncio.to_thread(_live_with_pika, port)


def _live_with_pika(port: int) -> None:
    with pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, heartbeat=1)
    ) as connection:
        channel: Any = connection.channel()
        channel.exchange_declare(NAME, "topic", auto_delete=True)
        channel.exchange_declare(f"{NAME}-all", "fanout", auto_delete=True)
        channel.exchange_bind(f"{NAME}-all", NAME, "#")
        channel.queue_declare(NAME, arguments={"x-max-length": 100})
        channel.queue_bind(NAME, f"{NAME}-all")
        channel.confirm_delivery()
        about = pika.BasicProperties(headers={"n": 1, "deep": {"er": [1, "x"]}}, priority=3)
        for _ in range(5):
            channel.basic_publish(NAME, "a.b", bytes(500), about)
        channel.basic_qos(prefetch_count=3)
        channel.basic_ack(channel.basic_get(NAME)[0].delivery_tag)
        channel.basic_nack(channel.basic_get(NAME)[0].delivery_tag)
        channel.basic_reject(channel.basic_get(NAME)[0].delivery_tag)
        channel.basic_recover(requeue=True)
        channel.basic_cancel(channel.basic_consume(NAME, lambda *_: None))
        channel.queue_unbind(NAME, f"{NAME}-all")
        channel.exchange_unbind(f"{NAME}-all", NAME, "#")
        channel.queue_purge(NAME)
        _in_a_transaction(connection.channel())
        channel.queue_delete(NAME)
        channel.exchange_delete(NAME)
        channel.close()


def _in_a_transaction(channel: Any) -> None:
    channel.tx_select()
    channel.basic_publish("", NAME, b"committed")
    channel.tx_commit()
    channel.basic_publish("", NAME, b"never")
    channel.tx_rollback()


async def _by_aio_pika(port: int) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{port}/?heartbeat=1"
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=2)
        exchange = await channel.declare_exchange(f"{NAME}-h", "headers", auto_delete=True)
        queue = await channel.declare_queue(f"{NAME}-h")
        await queue.bind(exchange, arguments={"x-match": "any", "n": 1})
        for number in range(4):
            message = aio_pika.Message(bytes(10), headers={"n": 1}, expiration=number + 1.0)
            await exchange.publish(message, "", mandatory=False)
        for _ in range(2):
            got = await queue.get(fail=False)
            if got is not None:
                await got.reject(requeue=True)
        await queue.cancel(await queue.consume(_forget, no_ack=True))
        await queue.unbind(exchange, arguments={"x-match": "any", "n": 1})
        await queue.delete(if_unused=False, if_empty=False)


async def _forget(_message: object) -> None:
    pass


# By the grammar ----------------------------------------------------------------------------------

SPOKEN = "spoken"
"""Not what others publish to: a log of that name would keep it all."""
_NAMES = (
    "",
    SPOKEN,
    "amq.direct",
    "amq.gen-x",
    "amq.rabbitmq.reply-to",
    "no-such",
    "n" * 255,
    "\0é",
)
_TABLES: tuple[dict[str, Any], ...] = (
    {}, {"x-max-length": -1}, {"x-message-ttl": 2**40}, {"x-queue-type": "stream"}, {"x-match": 3},
    {"x-dead-letter-exchange": SPOKEN}, {"x-expires": 1}, {"deep": {"er": {"and": [{}, [[]]]}}},
    {"k" * 128: "v" * 3_000}, {"x-stream-offset": "first"}, {"x-max-priority": 256},
)  # fmt: skip
EDGES: dict[str, tuple[Any, ...]] = {
    "bit": (False, True),
    "octet": (0, 1, 2, 255),
    "short": (0, 1, 2047, 65535),
    "long": (0, 1, 131072, 2**31, 2**32 - 1),
    "longlong": (0, 1, 2, 2**31, 2**63 - 1),
    "shortstr": (*_NAMES, "topic", "headers", "x-delayed-message", "#.#", "*.a.#"),
    "longstr": ("", "x", "\0guest\0guest", "l" * 3_000),
    "table": _TABLES,
    "timestamp": (0,),
}


def spoken(source: random.Random, octets: bytes) -> bytes:
    """After the log-in, phrases of the grammar."""
    said = [logged_in(octets)]
    for channel in range(2, source.randrange(3, 12)):
        if source.random() < 0.3:
            said.append(_phrase(source, source.choice((0, 1, 1, 1, channel))))
        else:
            said.append(frame.marshal(commands.Channel.Open(), channel))
            said.append(_phrase(source, channel))
    return b"".join(said)


def _phrase(source: random.Random, channel: int) -> bytes:
    kind = source.choice([one for one in CLIENT if (one.index >> 16 == 10) == (channel == 0)])
    values = {name: source.choice(EDGES[kind.amqp_type(name)]) for name in kind.__slots__}
    method = codec.encode_method(channel, made(kind, values))
    return method + (_content(source, channel) if kind is commands.Basic.Publish else b"")


def _content(source: random.Random, channel: int) -> bytes:
    """As it should be, mostly."""
    size, told = source.choice((0, 1, 4_000)), source.choice((0, 0, 0, 1, -1))
    head = struct.pack(">HHQH", 60, 0, max(0, size + told), 0)
    body = wire.frame(3, channel, bytes(size)) if size else b""
    return wire.frame(2, channel, head) + body
