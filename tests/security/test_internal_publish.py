"""An event or firehose copy that cannot be published is logged and does not fail the action."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret
from leveret.broker.events.internal_publish import PublishFailures
from leveret.broker.vhost import EVENT_EXCHANGE, TRACE_EXCHANGE


@pytest.fixture
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


def test_failing_event_is_logged_and_the_action_succeeds(
    threaded: leveret.ThreadedBroker,
    channel: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = channel.queue_declare("events", exclusive=True).method.queue
    channel.queue_bind(events, EVENT_EXCHANGE, "#")
    assert threaded.running is not None
    failures = threaded.running.broker.events.failures
    monkeypatch.setattr("leveret.broker.events.events.publish_internal", _fail)
    channel.queue_declare("made", durable=True)
    channel.queue_bind("made", "amq.topic", "key")
    channel.queue_delete("made")
    other = pika.BlockingConnection(pika.URLParameters(threaded.url))
    other.close()
    assert failures.count >= 5
    assert "could not publish event queue.created (1 failures)" in caplog.text
    assert "the store is on fire" in caplog.text
    monkeypatch.undo()
    channel.queue_purge(events)
    channel.queue_declare("made again", exclusive=True)
    method, _, _ = channel.basic_get(events, auto_ack=True)
    assert method.routing_key == "queue.created"


def test_failing_event_facts_do_not_fail_the_connection(
    threaded: leveret.ThreadedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threaded.running is not None
    failures = threaded.running.broker.events.failures
    before = failures.count
    monkeypatch.setattr("leveret.amqp_server.connection.AmqpConnection.info", _fail)
    with pika.BlockingConnection(pika.URLParameters(threaded.url)) as connection:
        connection.channel().queue_declare("", exclusive=True)
    assert failures.count > before


def test_failing_firehose_copy_is_logged_and_the_publish_succeeds(
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
    hub.events.failures = PublishFailures()
    monkeypatch.setattr("leveret.broker.events.firehose.publish_internal", _fail)
    channel.basic_publish("", queue, b"one")
    _, _, body = channel.basic_get(queue, auto_ack=True)
    assert body == b"one"
    assert hub.events.failures.count >= 2
    assert "to the firehose (" in caplog.text
    monkeypatch.undo()
    channel.basic_publish("", queue, b"two")
    method, _, body = channel.basic_get(copies, auto_ack=True)
    assert method.routing_key == "publish." and body == b"two"
