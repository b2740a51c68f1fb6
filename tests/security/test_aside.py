"""What cannot be told of an operation does not break the operation, and is not kept silent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret
from leveret.broker.inside import Mishaps
from leveret.broker.vhost import EVENT_EXCHANGE, TRACE_EXCHANGE


@pytest.fixture(scope="module")
def threaded() -> Iterator[leveret.ThreadedBroker]:
    with leveret.ThreadedBroker() as running:
        yield running


@pytest.fixture
def channel(threaded: leveret.ThreadedBroker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(threaded.url))
    yield connection.channel()
    connection.close()


def _fail(*_arguments: object) -> None:
    raise RuntimeError("the store is on fire")


def test_event_that_cannot_be_told(
    threaded: leveret.ThreadedBroker,
    channel: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = channel.queue_declare("heard", exclusive=True).method.queue
    channel.queue_bind(heard, EVENT_EXCHANGE, "#")
    assert threaded.running is not None
    mishaps = threaded.running.broker.events.mishaps
    monkeypatch.setattr("leveret.broker.events.send_inside", _fail)
    channel.queue_declare("made", durable=True)
    channel.queue_bind("made", "amq.topic", "key")
    channel.queue_delete("made")
    other = pika.BlockingConnection(pika.URLParameters(threaded.url))
    other.close()
    assert mishaps.count >= 5
    assert "event queue.created could not be told (1 such so far)" in caplog.text
    assert "the store is on fire" in caplog.text
    monkeypatch.undo()
    channel.queue_purge(heard)
    channel.queue_declare("made again", exclusive=True)
    method, _, _ = channel.basic_get(heard, auto_ack=True)
    assert method.routing_key == "queue.created"


def test_facts_that_cannot_be_gathered(
    threaded: leveret.ThreadedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threaded.running is not None
    mishaps = threaded.running.broker.events.mishaps
    before = mishaps.count
    monkeypatch.setattr("amqp_server.session.Session.describe", _fail)
    with pika.BlockingConnection(pika.URLParameters(threaded.url)) as connection:
        connection.channel().queue_declare("", exclusive=True)
    assert mishaps.count > before


def test_copy_that_cannot_be_made(
    threaded: leveret.ThreadedBroker,
    channel: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    running = threaded.running
    assert running is not None
    hub = running.broker
    threaded.call(lambda: hub.set_vhost_options(hub.vhosts["/"], {"tracing": True}))
    queue = channel.queue_declare("", exclusive=True).method.queue
    copies = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(copies, TRACE_EXCHANGE, "#")
    channel.confirm_delivery()
    hub.events.mishaps = Mishaps()
    monkeypatch.setattr("leveret.broker.firehose.send_inside", _fail)
    channel.basic_publish("", queue, b"one")
    _, _, body = channel.basic_get(queue, auto_ack=True)
    assert body == b"one"
    assert hub.events.mishaps.count >= 2
    assert "the firehose could not be told" in caplog.text
    monkeypatch.undo()
    channel.basic_publish("", queue, b"two")
    method, _, body = channel.basic_get(copies, auto_ack=True)
    assert method.routing_key == "publish." and body == b"two"
