"""Row C-35: how the bytes of a session are split into writes has no effect on its outcome.

One scripted session, sent without waiting for answers, is replayed unsplit, byte by byte and in
random chunks. The answers are compared in order per channel, the messages in order per consumer,
and the confirmed publishes as a set (a broker may combine confirms as it likes).
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from pamqp import body, header
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue

from tests.support import wire
from tests.support.rawclient import describe

BODY = random.Random(35).randbytes(10_000)
DELIVERIES = 4


def message(exchange, key, content, **options):
    properties = Basic.Properties(**options.pop("properties", {}))
    limit = 4096 - 8
    yield Basic.Publish(exchange=exchange, routing_key=key, **options)
    yield header.ContentHeader(0, len(content), properties)
    for at in range(0, len(content), limit):
        yield body.ContentBody(content[at : at + limit])


def opening(target):
    """The first half of the session, which ends with an error on channel 1."""
    login: Any = {"capabilities": {"publisher_confirms": True, "consumer_cancel_notify": True}}
    plain = wire.plain(target.user, target.password)
    script = [
        (0, wire.PROTOCOL_HEADER),
        (0, Connection.StartOk(login, "PLAIN", plain, "en_US")),
        (0, Connection.TuneOk(2047, 4096, 0)),
        (0, Connection.Open(target.vhost)),
        (1, Channel.Open()),
        (2, Channel.Open()),
        (1, Queue.Declare(queue="fragments", exclusive=True)),
        (1, Exchange.Declare(exchange="fragments", exchange_type="topic", auto_delete=True)),
        (1, Queue.Bind(queue="fragments", exchange="fragments", routing_key="a.*")),
        (1, Confirm.Select()),
        *((1, part) for part in message("fragments", "a.b", BODY)),
        *((1, part) for part in message("fragments", "nowhere", b"back", mandatory=True)),
        *((1, part) for part in message("fragments", "a.", b"", properties={"priority": 3})),
        (0, wire.frame(wire.HEARTBEAT, 0)),
        *((1, Basic.Get(queue="fragments")) for _ in range(3)),
        (1, Basic.Ack(2, multiple=True)),
        (1, Queue.Declare(queue="no-such-queue", passive=True)),
        (1, Basic.Qos(prefetch_count=9)),  # ignored: the channel is closing
    ]
    return joined(script)


def closing():
    """The second half of the session: channel 1 again, and a consumer on channel 2."""
    script = [
        (1, Channel.CloseOk()),
        (1, Channel.Open()),
        (1, Channel.Flow(active=True)),
        (2, Queue.Declare(queue="fragments-2", exclusive=True)),
        (2, Basic.Consume(queue="fragments-2", consumer_tag="t", no_ack=True)),
    ]
    for number in range(DELIVERIES):
        script += [(2, part) for part in message("", "fragments-2", b"%d" % number * 3000)]
    return joined(script)


def joined(script):
    return b"".join(wire.encode(channel, method) for channel, method in script)


class Outcome:
    """The answers of the server, in a form that can be compared."""

    def __init__(self, client):
        self.client = client
        self.answers: dict[int, list[str]] = {0: [], 1: [], 2: []}
        self.delivered = []
        self.confirmed = set()

    def read_until(self, done):
        while not done():
            frame = self.client.next_frame()
            self.client._inbox[frame.channel].append(frame)
            self.take(frame.channel, frame.decode())

    def take(self, channel, method):
        if isinstance(method, Basic.Deliver | Basic.GetOk | Basic.Return):
            content = self.client.content(type(method), channel)
            text = f"{describe(method)} {content.body!r} {content.header_payload!r}"
            target = self.delivered if isinstance(method, Basic.Deliver) else self.answers[channel]
            target.append(text)
            return
        self.client.next_on(channel)
        if isinstance(method, Basic.Ack):
            tag = method.delivery_tag
            self.confirmed |= set(range(1, tag + 1)) if method.multiple else {tag}
        else:
            self.answers[channel].append(describe(method))

    def names(self, channel):
        return [text.split("(")[0] for text in self.answers[channel]]

    def comparable(self):
        return self.names(0), self.answers[1], self.answers[2], self.delivered, self.confirmed


def play(broker, cut):
    """Run the session, its bytes split into writes by `cut`."""
    with contextlib.closing(broker.socket()) as client:
        outcome = Outcome(client)
        for chunk in cut(opening(broker)):
            client.send_bytes(chunk)
        outcome.read_until(lambda: "Channel.Close" in outcome.names(1))
        for chunk in cut(closing()):
            client.send_bytes(chunk)
        outcome.read_until(
            lambda: len(outcome.delivered) == DELIVERIES and "Channel.FlowOk" in outcome.names(1)
        )
        client.send(0, Connection.Close(200, "", 0, 0))
        client.expect(Connection.CloseOk)
        return outcome


@pytest.fixture(scope="module")
def reference(broker):
    """The outcome of the session sent in two writes."""
    return play(broker, lambda data: [data])


def test_c035_unsplit(reference):
    assert reference.confirmed == {1, 2, 3}
    assert reference.names(0) == ["Connection.Start", "Connection.Tune", "Connection.OpenOk"]
    assert reference.names(1) == [
        "Channel.OpenOk",
        "Queue.DeclareOk",
        "Exchange.DeclareOk",
        "Queue.BindOk",
        "Confirm.SelectOk",
        "Basic.Return",
        "Basic.GetOk",
        "Basic.GetOk",
        "Basic.GetEmpty",
        "Channel.Close",
        "Channel.OpenOk",
        "Channel.FlowOk",
    ]


def test_c035_byte_by_byte(broker, reference):
    def cut(data):
        """Every byte in its own write, except those inside the long bodies."""
        edge = 1200
        yield from (data[at : at + 1] for at in range(edge))
        yield data[edge:-edge]
        yield from (data[at : at + 1] for at in range(len(data) - edge, len(data)))

    assert play(broker, cut).comparable() == reference.comparable()


@pytest.mark.parametrize("seed", range(12))
def test_c035_random_chunks(broker, reference, seed):
    source = random.Random(seed)

    def cut(data):
        while data:
            size = source.choice((1, 2, 7, 8, 50, 300, 4096))
            yield data[:size]
            data = data[size:]

    assert play(broker, cut).comparable() == reference.comparable()
