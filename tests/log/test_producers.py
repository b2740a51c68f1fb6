"""Idempotent producers: resent messages are confirmed and stored once, gaps are refused."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from tests.log.conftest import declare


def send(channel, sequence, producer="p", exchange="", key="log", **headers):
    numbered = {"x-producer-id": producer, "x-producer-seq": sequence, **headers}
    properties = pika.BasicProperties(headers=numbered)
    channel.basic_publish(exchange, key, b"%s-%d" % (producer.encode(), sequence), properties)


@pytest.fixture
def log(channel):
    declare(channel, "log")
    return "log"


def test_a_resent_message_is_confirmed_and_stored_once(log, channel, home, readers):
    for sequence in (1, 2, 1, 2, 3, 3):
        send(channel, sequence)
    assert readers(log, x_stream_offset="first").read(3).bodies == [b"p-1", b"p-2", b"p-3"]
    assert home.hub.logs.describe("/", log)["partitions"][0]["duplicates"] == 3


def test_a_gap_is_refused(log, channel, home, readers):
    send(channel, 1)
    with pytest.raises(pika.exceptions.NackError):
        send(channel, 3)
    send(channel, 2)
    send(channel, 3)
    assert readers(log, x_stream_offset="first").read(3).bodies == [b"p-1", b"p-2", b"p-3"]
    assert home.hub.logs.describe("/", log)["partitions"][0]["gaps"] == 1


def test_without_confirms_a_gap_is_dropped(log, channel, connection, readers):
    silent = connection.channel()
    for sequence in (1, 3, 2):
        send(silent, sequence)
    send(channel, 3)
    assert readers(log, x_stream_offset="first").read(3).bodies == [b"p-1", b"p-2", b"p-3"]


def test_producers_are_told_apart(log, channel, readers):
    for producer, sequence in (("a", 5), ("b", 1), ("a", 6), ("b", 1), ("b", 2)):
        send(channel, sequence, producer)
    assert readers(log, x_stream_offset="first").read(4).bodies == [b"a-5", b"b-1", b"a-6", b"b-2"]


def test_the_numbers_survive_a_restart(log, channel, home, readers):
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


def test_one_producer_over_several_partitions(channel, readers):
    declare(channel, "orders", partitions=3)
    for sequence in range(1, 31):
        send(channel, sequence, exchange="orders", key=f"k{sequence}")
    for sequence in range(1, 31):
        send(channel, sequence, exchange="orders", key=f"k{sequence}")
    with pytest.raises(pika.exceptions.NackError):
        send(channel, 32, exchange="orders", key="k")
    reader = readers("orders", x_stream_offset="first").read(30).quiet(0.1)
    assert sorted(reader.bodies) == sorted(b"p-%d" % n for n in range(1, 31))
