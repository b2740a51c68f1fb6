"""Whatever octets arrive, the answer is AMQP and never an internal error (C-18 to C-28).

The scripted session of test_fragments is mutated by a seeded hand: octets flipped, cut out,
doubled, lengths made huge. The broker may refuse it anywhere, but every frame it sends must be
well formed, its close must blame the peer, and others must be served afterwards.
"""

from __future__ import annotations

import random
import socket
import struct

import pytest
from pamqp.commands import Connection

from tests.semantics.test_fragments import closing, opening
from tests.support import wire
from tests.support.rawclient import ConnectionEndedError, NothingCameError


@pytest.fixture
def rounds(expected):
    """RabbitMQ often takes its time to drop a connection; its own robustness is not our case."""
    return expected(leveret=25, rabbitmq=1)


def mutated(source, octets):
    """The session with a few things wrong with it, mostly after the protocol header."""
    octets = bytearray(octets)
    for _ in range(source.choice((1, 1, 2, 5))):
        at = source.randrange(min(8, len(octets) - 1), len(octets))
        kind = source.randrange(6)
        if kind == 0:
            octets[at] = source.randrange(256)
        elif kind == 1:
            octets[at] ^= 1 << source.randrange(8)
        elif kind == 2:
            del octets[at : at + source.choice((1, 3, 40))]
        elif kind == 3:
            octets[at:at] = octets[at : at + source.choice((1, 8, 100))]
        elif kind == 4:
            octets[at : at + 4] = source.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\0\0\0"))
        else:
            octets[at:at] = source.randbytes(source.choice((1, 4, 30)))
    return bytes(octets)


def early_mutated(source, octets):
    """The same, within the methods before the long bodies, where most of the meaning is."""
    return mutated(source, octets[:700]) + octets[700:]


def payload_mutated(source, octets):
    """Frames stay whole: what is wrong is inside one or two of them."""
    frames, at = [octets[:8]], 8
    while at < len(octets):
        kind, channel, size = struct.unpack_from(">BHI", octets, at)
        frames.append(wire.frame(kind, channel, octets[at + 7 : at + 7 + size]))
        at += size + 8
    for _ in range(source.choice((1, 1, 2))):
        which = source.randrange(1, len(frames))
        kind, channel, size = struct.unpack_from(">BHI", frames[which])
        payload = frames[which][7 : 7 + size]
        if size > 4:
            wrong = mutated(source, b"\0" * 4 + payload)[4:]
            frames[which] = wire.frame(kind, channel, wrong)
    return b"".join(frames)


def answers(broker, octets):
    """Every frame the broker answers with, until it ends the connection or has no more."""
    client = broker.socket()
    frames = []
    try:
        client.send_bytes(octets)
        client._socket.shutdown(socket.SHUT_WR)
        while True:
            frames.append(client.next_frame(0.5))
    except (ConnectionEndedError, NothingCameError, OSError):
        return frames
    finally:
        client.drop()


def check(broker, octets):
    for frame in answers(broker, octets):
        thing = frame.decode()
        if isinstance(thing, Connection.Close):
            assert thing.reply_code != 541, thing.reply_text


@pytest.mark.parametrize("mutate", [mutated, early_mutated, payload_mutated])
@pytest.mark.parametrize("seed", range(6))
def test_c018_mutated_sessions(broker, names, rounds, seed, mutate):
    source = random.Random(seed)
    octets = opening(broker) + closing()
    for number in range(rounds):
        # Names of its own each time: a mutation may well leave a queue or an exchange behind.
        name = b"fz%03d%04d" % (seed, number)
        names.queues += [name.decode(), name.decode() + "-2"]
        names.exchanges.append(name.decode())
        check(broker, mutate(source, octets.replace(b"fragments", name)))
    broker.connect().close()


@pytest.mark.parametrize("seed", range(4))
def test_c018_random_octets_after_the_handshake(broker, rounds, seed):
    source = random.Random(seed)
    octets = opening(broker)
    handshake = octets[: octets.index(wire.frame(1, 1, b"\0\x14\0\x0a\1\x30"))]
    starts = (b"\0\x32\0\x0a", b"\0\x3c\0\x28", b"\0\x28\0\x0a", b"\0\x0a\0\x1f", b"")
    for _ in range(rounds):
        frames = b""
        for _ in range(6):
            kind = source.choice((1, 1, 1, 2, 3, 8))
            payload = source.choice(starts) + source.randbytes(source.choice((0, 1, 5, 30, 200)))
            frames += wire.frame(kind, source.choice((0, 1, 1, 1, 2)), payload)
        check(broker, handshake + frames)
