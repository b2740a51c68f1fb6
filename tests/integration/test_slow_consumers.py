"""What the broker buffers for consumers that do not read is limited."""

from __future__ import annotations

import socket
import time

import pytest
from pamqp.commands import Basic, Queue

from tests.support import wire
from tests.support.rawclient import RawChannel, RawClient

BODY = b"x" * 10_000
COUNT = 4_000
MAX_BUFFERED = 8 * 1024 * 1024
"""Deliveries are in socket buffers (a few MiB), and at most 1 MiB of them in the broker."""


class StalledClient(RawClient):
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


def stalled_consumer(broker, queue: str, no_ack: bool) -> StalledClient:
    client = StalledClient(broker.host, broker.port)
    client.handshake(broker.vhost)
    client.channel()
    client.send(1, Basic.Consume(queue=queue, no_ack=no_ack))
    return client


@pytest.mark.parametrize("no_ack", [False, True], ids=["manual", "automatic"])
def test_consumer_that_does_not_read_gets_a_limited_number_of_messages(broker, filled, no_ack):
    channel, queue = filled
    stalled = stalled_consumer(broker, queue, no_ack)
    waiting = settled_ready(channel, queue)
    assert (COUNT - waiting) * len(BODY) < MAX_BUFFERED
    if not no_ack:
        stalled.drop()
        channel.wait_ready(queue, COUNT)
    stalled.drop()


def test_stalled_consumer_does_not_slow_down_another(broker, filled):
    _, queue = filled
    stalled = stalled_consumer(broker, queue, True)
    with broker.connect() as client:
        channel = client.channel()
        channel.consume(queue, no_ack=True)
        for _ in range(COUNT - MAX_BUFFERED // len(BODY)):
            assert len(channel.deliver().body) == len(BODY)
    stalled.drop()
