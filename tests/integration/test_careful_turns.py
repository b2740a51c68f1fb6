"""Publishes whose way is looked for each time: no more of them in a turn than there is time for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic, Exchange, Queue
from pamqp.header import ContentHeader

from leveret.broker import turn
from leveret.broker.vhost import VirtualHost
from leveret.launch import ThreadedBroker, in_process_settings
from tests.support import wire
from tests.support.rawclient import RawChannel, RawClient

COUNT = 60


class Looks:
    """How many ways were looked for, or bindings made, in each turn that had any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.all = 0
        self.turns: list[int] = []
        end = turn.Turn.end

        def ended(this: turn.Turn) -> None:
            end(this)
            if self.now:
                self.turns.append(self.now)
            self.now = 0

        monkeypatch.setattr(VirtualHost, "plan", self._counted(VirtualHost.plan))
        monkeypatch.setattr(VirtualHost, "bind", self._counted(VirtualHost.bind))
        monkeypatch.setattr(turn.Turn, "end", ended)
        monkeypatch.setattr(turn, "READING_SECONDS", 0)  # each turn is over when it begins

    def _counted(self, act: Callable[..., object]) -> Callable[..., object]:
        def counted(*given: object) -> object:
            self.now += 1
            self.all += 1
            return act(*given)

        return counted


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


@pytest.fixture
def channel(looks: Looks, tmp_path: Path) -> Iterator[RawChannel]:
    settings = in_process_settings(data_dir=tmp_path)
    with ThreadedBroker(settings) as broker, RawClient(*broker.amqp_address) as client:
        yield client.handshake("/").channel()


def message(exchange: str, number: int, **properties: object) -> bytes:
    body = b"%d" % number
    head = ContentHeader(0, len(body), Basic.Properties(**properties))  # type: ignore[arg-type]
    return wire.publish(1, exchange, "q") + wire.encode(1, head) + wire.body(1, body)


def taken(channel: RawChannel, count: int) -> list[bytes]:
    channel.consume("q", no_ack=True)
    return [one.body for one in channel.deliveries(count)]


def test_by_headers(channel: RawChannel, looks: Looks) -> None:
    channel.declare("q")
    channel.bind("q", "amq.headers", "", arguments={"a": 1})
    channel.client.send_bytes(
        b"".join(message("amq.headers", n, headers={"a": 1}) for n in range(COUNT))
    )
    assert taken(channel, COUNT) == [b"%d" % n for n in range(COUNT)]
    assert looks.all == COUNT + 1 and max(looks.turns) <= 2


def test_of_messages_that_need_care_amid_others(channel: RawChannel, looks: Looks) -> None:
    channel.declare("q")
    kinds: list[dict[str, object]] = [{}, {}, {"expiration": "3600000"}, {"expiration": "3600000"}]
    channel.client.send_bytes(b"".join(message("", n, **kinds[n % 4]) for n in range(COUNT)))
    assert taken(channel, COUNT) == [b"%d" % n for n in range(COUNT)]
    assert max(looks.turns) <= 2


def test_behind_an_answer_that_waits_for_disk(channel: RawChannel, looks: Looks) -> None:
    channel.declare("q")
    channel.bind("q", "amq.headers", "", arguments={"a": 1})
    publishes = b"".join(message("amq.headers", n, headers={"a": 1}) for n in range(COUNT))
    declare = wire.encode(1, Queue.Declare(queue="lasts", durable=True))
    channel.client.send_bytes(declare + publishes)
    channel.expect(Queue.DeclareOk)
    assert taken(channel, COUNT) == [b"%d" % n for n in range(COUNT)]
    assert max(looks.turns) <= 2


def test_when_a_known_way_has_become_one_to_look_for(channel: RawChannel, looks: Looks) -> None:
    channel.declare("q")
    channel.exchange("x", "fanout")
    channel.bind("q", "x", "")
    channel.client.send_bytes(b"".join(message("x", n, headers={"a": 1}) for n in range(3)))
    channel.call(Exchange.Delete(exchange="x"))
    channel.exchange("x", "headers")
    channel.bind("q", "x", "", arguments={"a": 1})
    before = looks.all
    channel.client.send_bytes(b"".join(message("x", n, headers={"a": 1}) for n in range(3, COUNT)))
    assert taken(channel, COUNT) == [b"%d" % n for n in range(COUNT)]
    assert looks.all == before + COUNT - 3 and max(looks.turns) <= 2


def test_so_it_is_for_bindings(channel: RawChannel, looks: Looks) -> None:
    channel.declare("q")
    binds = [Queue.Bind(queue="q", exchange="amq.topic", routing_key=str(n)) for n in range(COUNT)]
    channel.send(*binds)
    for _ in binds:
        channel.expect(Queue.BindOk)
    assert looks.all == COUNT and max(looks.turns) <= 2


def test_what_waits_for_its_turn_counts_when_its_client_goes():
    """The way they go becomes one that each has to find, and the peer has gone by then."""
    with ThreadedBroker() as broker, RawClient(*broker.amqp_address) as other:
        maker = other.handshake("/").channel()
        maker.declare("all")
        maker.exchange("way", "fanout")
        maker.exchange("aside", "headers")
        maker.bind("all", "way")
        with RawClient(*broker.amqp_address) as client:
            channel = client.handshake("/").channel()
            one = wire.publish(1, "way", "k") + wire.content_header(1, 1) + wire.body(1, b"x")
            client.send_bytes(one * 3)
            channel.qos(1)
            maker.call(Exchange.Bind(0, "aside", "way", "", False, {}))
            client.send_bytes(one * 150)
            client.drop()
        maker.wait_ready("all", 153)
