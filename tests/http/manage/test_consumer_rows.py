"""Which of several consumers is active, in rows of consumers and queues."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest


@pytest.fixture
def channel(leveret) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(leveret.url)) as connection:
        yield connection.channel()


def activity(api, queue):
    rows = api.get("queues", "/", queue)["consumer_details"]
    listed = [row for row in api.get("consumers", "/") if row["queue"]["name"] == queue]
    assert sorted(rows, key=str) == sorted(listed, key=str)
    return {row["consumer_tag"]: (row["active"], row["activity_status"]) for row in rows}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_single_active_consumer_and_waiting_consumers(api, channel, kind):
    queue = f"single-{kind}"
    arguments = {"x-queue-type": kind, "x-single-active-consumer": True}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    assert api.get("queues", "/", queue)["single_active_consumer_tag"] is None
    for tag in ("first", "second"):
        channel.basic_consume(queue, lambda *_: None, consumer_tag=tag)
    waiting, active = (False, "waiting"), (True, "single_active")
    assert activity(api, queue) == {"first": active, "second": waiting}
    assert api.get("queues", "/", queue)["single_active_consumer_tag"] == "first"
    channel.basic_cancel("first")
    assert activity(api, queue) == {"second": active}
    assert api.get("queues", "/", queue)["single_active_consumer_tag"] == "second"
    channel.queue_delete(queue)


def test_exclusive_consumer_tag_is_shown(api, channel):
    channel.queue_declare("held")
    channel.basic_consume("held", lambda *_: None, consumer_tag="mine", exclusive=True)
    row = api.get("queues", "/", "held")
    assert (row["exclusive_consumer_tag"], row["single_active_consumer_tag"]) == ("mine", None)
    assert activity(api, "held") == {"mine": (True, "up")}
    channel.queue_delete("held")


def test_quorum_queues_and_streams_have_one_member(api, vhost):
    node = api.get("overview")["node"]
    for kind in ("quorum", "stream"):
        api.put("queues", vhost, kind, body={"durable": True, "arguments": {"x-queue-type": kind}})
        row = api.get("queues", vhost, kind)
        assert (row["leader"], row["members"], row["online"]) == (node, [node], [node])
    api.put("queues", vhost, "plain")
    assert "leader" not in api.get("queues", vhost, "plain")


def test_messages_in_memory(api, vhost):
    api.put("queues", vhost, "q")
    body = {"properties": {}, "routing_key": "q", "payload": "12345", "payload_encoding": "string"}
    api.post("exchanges", vhost, "amq.default", "publish", body=body)
    row = api.get("queues", vhost, "q")
    wanted = {"messages_ready_ram": 1, "messages_unacknowledged_ram": 0, "message_bytes_ram": 5,
              "message_bytes_paged_out": 0}  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted
