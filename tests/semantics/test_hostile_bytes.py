"""The broker answers any bytes with AMQP, never with an internal error (C-18 to C-28).

The scripted session of test_fragments is mutated with a seed: bytes are flipped, removed or
doubled, lengths are made huge. The broker may refuse it anywhere, but every frame it sends must be
well formed, its close must name an error of the client, and it must serve other clients afterwards.
"""

from __future__ import annotations

import random
import socket
import struct

import pytest
from pamqp.commands import Connection

from tests.semantics.test_fragments import closing, opening
from tests.support import wire
from tests.support.rawclient import ConnectionEndedError, NoFrameError


@pytest.fixture
def rounds(expected):
    """Few rounds on RabbitMQ, which is often slow to drop a connection."""
    return expected(leveret=25, rabbitmq=1)


def mutated(source, data):
    """The session with a few errors, mostly after the protocol header."""
    data = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 5))):
        at = source.randrange(min(8, len(data) - 1), len(data))
        kind = source.randrange(6)
        if kind == 0:
            data[at] = source.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << source.randrange(8)
        elif kind == 2:
            del data[at : at + source.choice((1, 3, 40))]
        elif kind == 3:
            data[at:at] = data[at : at + source.choice((1, 8, 100))]
        elif kind == 4:
            data[at : at + 4] = source.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\0\0\0"))
        else:
            data[at:at] = source.randbytes(source.choice((1, 4, 30)))
    return bytes(data)


def early_mutated(source, data):
    """Errors within the methods before the long bodies."""
    return mutated(source, data[:700]) + data[700:]


def payload_mutated(source, data):
    """Errors within one or two frames, which stay complete."""
    frames, at = [data[:8]], 8
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        frames.append(wire.frame(kind, channel, data[at + 7 : at + 7 + size]))
        at += size + 8
    for _ in range(source.choice((1, 1, 2))):
        index = source.randrange(1, len(frames))
        kind, channel, size = struct.unpack_from(">BHI", frames[index])
        payload = frames[index][7 : 7 + size]
        if size > 4:
            mutated_payload = mutated(source, b"\0" * 4 + payload)[4:]
            frames[index] = wire.frame(kind, channel, mutated_payload)
    return b"".join(frames)


def answers(broker, data):
    """All frames that the broker sends, until it closes the connection or is silent."""
    client = broker.socket()
    frames = []
    try:
        client.send_bytes(data)
        client._socket.shutdown(socket.SHUT_WR)
        while True:
            frames.append(client.next_frame(0.5))
    except (ConnectionEndedError, NoFrameError, OSError):
        return frames
    finally:
        client.drop()


def check(broker, data):
    for frame in answers(broker, data):
        method = frame.decode()
        if isinstance(method, Connection.Close):
            assert method.reply_code != 541, method.reply_text


@pytest.mark.parametrize("mutate", [mutated, early_mutated, payload_mutated])
@pytest.mark.parametrize("seed", range(6))
def test_c018_mutated_sessions(broker, names, rounds, seed, mutate):
    source = random.Random(seed)
    data = opening(broker) + closing()
    for number in range(rounds):
        # New names each time, because a mutation may leave a queue or an exchange behind.
        name = b"fz%03d%04d" % (seed, number)
        names.queues += [name.decode(), name.decode() + "-2"]
        names.exchanges.append(name.decode())
        check(broker, mutate(source, data.replace(b"fragments", name)))
    broker.connect().close()


@pytest.mark.parametrize("seed", range(4))
def test_c018_random_bytes_after_the_handshake(broker, rounds, seed):
    source = random.Random(seed)
    data = opening(broker)
    handshake = data[: data.index(wire.frame(1, 1, b"\0\x14\0\x0a\1\x30"))]
    starts = (b"\0\x32\0\x0a", b"\0\x3c\0\x28", b"\0\x28\0\x0a", b"\0\x0a\0\x1f", b"")
    for _ in range(rounds):
        frames = b""
        for _ in range(6):
            kind = source.choice((1, 1, 1, 2, 3, 8))
            payload = source.choice(starts) + source.randbytes(source.choice((0, 1, 5, 30, 200)))
            frames += wire.frame(kind, source.choice((0, 1, 1, 1, 2)), payload)
        check(broker, handshake + frames)
