"""Slow and greedy peers: what they hold in the broker is bounded."""

from __future__ import annotations

import socket
import time

import pytest
from pamqp.commands import Basic, Queue

from tests.support import wire
from tests.support.rawclient import RawChannel, RawClient

BODY = b"x" * 10_000
COUNT = 4_000
MOST = 8 * 1024 * 1024
"""What has left the queue is in socket buffers (a few MiB), at most 1 MiB in the broker."""


class DeafClient(RawClient):
    """A client with a small receive buffer, so that the broker soon notices it does not read."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)


@pytest.fixture
def filled(broker, name):
    """A queue with 40 MB in it."""
    with broker.connect(capabilities={}) as client:
        channel = client.channel()
        queue = name()
        channel.declare(queue)
        message = wire.publish(1, "", queue) + wire.content_header(1, len(BODY))
        message += wire.body(1, BODY)
        for _ in range(COUNT // 100):
            client.send_bytes(message * 100)
        channel.wait_ready(queue, COUNT)
        yield channel, queue
        channel.call(Queue.Delete(queue=queue))


def settled_ready(channel: RawChannel, queue: str) -> int:
    """The ready count once it has stopped changing."""
    last, since = -1, time.monotonic()
    deadline = since + 60
    while time.monotonic() < deadline:
        now = channel.ready(queue)
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > 0.3:
            return now
        time.sleep(0.05)
    raise AssertionError("deliveries never stopped")


def deaf_consumer(broker, queue: str, no_ack: bool) -> DeafClient:
    client = DeafClient(broker.host, broker.port)
    client.handshake(broker.vhost)
    client.channel()
    client.send(1, Basic.Consume(queue=queue, no_ack=no_ack))
    return client


@pytest.mark.parametrize("no_ack", [False, True], ids=["manual", "automatic"])
def test_consumer_that_does_not_read_gets_no_more(broker, filled, no_ack):
    channel, queue = filled
    deaf = deaf_consumer(broker, queue, no_ack)
    waiting = settled_ready(channel, queue)
    assert (COUNT - waiting) * len(BODY) < MOST
    if not no_ack:
        deaf.drop()
        channel.wait_ready(queue, COUNT)
    deaf.drop()


def test_deaf_consumer_does_not_slow_down_another(broker, filled):
    _, queue = filled
    deaf = deaf_consumer(broker, queue, True)
    with broker.connect() as client:
        channel = client.channel()
        channel.consume(queue, no_ack=True)
        for _ in range(COUNT - MOST // len(BODY)):
            assert len(channel.deliver().body) == len(BODY)
    deaf.drop()
