"""Idempotent producers: duplicates are confirmed and stored once, gaps are rejected."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from leveret.queues.log.files import ProducerState
from tests.log.conftest import declare


def send(channel, sequence, producer="p", exchange="", key="log", **headers):
    numbered = {"x-producer-id": producer, "x-producer-seq": sequence, **headers}
    properties = pika.BasicProperties(headers=numbered)
    channel.basic_publish(exchange, key, b"%s-%d" % (producer.encode(), sequence), properties)


@pytest.fixture
def log(channel):
    declare(channel, "log")
    return "log"


def test_duplicate_is_confirmed_and_stored_once(log, channel, home, readers):
    for sequence in (1, 2, 1, 2, 3, 3):
        send(channel, sequence)
    assert readers(log, x_stream_offset="first").read(3).bodies == [b"p-1", b"p-2", b"p-3"]
    assert home.hub.logs.describe("/", log).partitions[0].duplicates == 3


def test_gap_is_rejected(log, channel, home, readers):
    send(channel, 1)
    with pytest.raises(pika.exceptions.NackError):
        send(channel, 3)
    send(channel, 2)
    send(channel, 3)
    assert readers(log, x_stream_offset="first").read(3).bodies == [b"p-1", b"p-2", b"p-3"]
    assert home.hub.logs.describe("/", log).partitions[0].gaps == 1


def test_gap_without_confirms_is_dropped(log, channel, connection, readers):
    silent = connection.channel()
    for sequence in (1, 3, 2):
        send(silent, sequence)
    send(channel, 3)
    assert readers(log, x_stream_offset="first").read(3).bodies == [b"p-1", b"p-2", b"p-3"]


def test_producers_have_separate_sequences(log, channel, readers):
    for producer, sequence in (("a", 5), ("b", 1), ("a", 6), ("b", 1), ("b", 2)):
        send(channel, sequence, producer)
    assert readers(log, x_stream_offset="first").read(4).bodies == [b"a-5", b"b-1", b"a-6", b"b-2"]


def test_sequence_numbers_survive_a_restart(log, channel, home, readers):
    send(channel, 1)
    send(channel, 2)
    home.restart()
    connection = home.connect()
    again = connection.channel()
    again.confirm_delivery()
    send(again, 2)
    with pytest.raises(pika.exceptions.NackError):
        send(again, 4)
    send(again, 3)
    assert readers(log, x_stream_offset="first").read(3).bodies == [b"p-1", b"p-2", b"p-3"]
    connection.close()


def test_producer_writes_to_several_partitions(channel, readers):
    declare(channel, "orders", partitions=3)
    for sequence in range(1, 31):
        send(channel, sequence, exchange="orders", key=f"k{sequence}")
    for sequence in range(1, 31):
        send(channel, sequence, exchange="orders", key=f"k{sequence}")
    with pytest.raises(pika.exceptions.NackError):
        send(channel, 32, exchange="orders", key="k")
    reader = readers("orders", x_stream_offset="first").read(30).quiet(0.1)
    assert sorted(reader.bodies) == sorted(b"p-%d" % n for n in range(1, 31))


def test_partitions_are_asked_once_for_a_producer(home, channel, monkeypatch):
    """Regression: every message of an idempotent producer looked at all partitions."""
    declare(channel, "orders", partitions=50)
    asked = []
    last = ProducerState.last

    def counted(self, producer_id):
        asked.append(producer_id)
        return last(self, producer_id)

    send(channel, 1, exchange="orders", key="key-0")
    monkeypatch.setattr(ProducerState, "last", counted)
    for number in range(2, 12):
        send(channel, number, exchange="orders", key=f"key-{number}")
    assert len(asked) == 10


def test_gap_is_noticed_in_another_partition_after_a_restart(home, channel):
    declare(channel, "orders", partitions=5)
    for number in range(1, 8):
        send(channel, number, exchange="orders", key=f"key-{number}")
    home.restart()
    again = home.connect().channel()
    again.confirm_delivery()
    with pytest.raises(pika.exceptions.NackError):
        send(again, 9, exchange="orders", key="key")
    send(again, 8, exchange="orders", key="other")
