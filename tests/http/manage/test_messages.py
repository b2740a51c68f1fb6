"""Messages over HTTP: publish, get, browse, and the dry run of a route."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from typing import Any
from urllib.parse import quote, urlsplit

import pika
import pytest

from leveret.launch import ThreadedBroker, in_process_settings
from leveret.testing import LeveretBroker
from tests.http.manage.client import Api
from tests.support.polling import wait_until


def publish(api, vhost, key, payload="hi", exchange="amq.default", **more):
    body = {"routing_key": key, "payload": payload, "payload_encoding": "string",
            "properties": {}} | more  # fmt: skip
    return api.post("exchanges", vhost, exchange, "publish", body=body)


def take(api, vhost, name, mode="ack_requeue_false", count=10, **more):
    body = {"count": count, "ackmode": mode, "encoding": "auto"} | more
    return api.post("queues", vhost, name, "get", body=body)


@pytest.fixture
def queue(api, vhost):
    api.put("queues", vhost, "q", body={"durable": True})
    return "q"


# Publish -----------------------------------------------------------------------------------------


def test_published_message_reaches_an_amqp_client(api, vhost, queue, channel):
    properties = {
        "delivery_mode": 2,
        "content_type": "text/plain",
        "priority": 3,
        "timestamp": 1_700_000_000,
        "message_id": "m-1",
        "headers": {"n": 1, "text": "x", "list": [1, "s"], "nested": {"yes": True}},
    }
    assert publish(api, vhost, queue, "häßlich", properties=properties) == {"routed": True}
    method, got, body = channel.basic_get(queue, auto_ack=True)
    assert body.decode() == "häßlich"
    assert got.headers == properties["headers"]
    assert (got.delivery_mode, got.priority, got.timestamp) == (2, 3, 1_700_000_000)
    assert (got.content_type, got.message_id, method.exchange) == ("text/plain", "m-1", "")


def test_headers_keep_their_types(api, vhost, queue):
    headers = {"f": 1.1, "big": 1 << 62, "no": None, "list": [1, [2.5, {"deep": "ü"}]], "b": False}
    publish(api, vhost, queue, properties={"headers": headers})
    assert take(api, vhost, queue)[0]["properties"]["headers"] == headers


def test_publish_reports_unroutable_messages(api, vhost):
    assert publish(api, vhost, "nowhere") == {"routed": False}


def test_publish_accepts_base64(api, vhost, queue, channel):
    body = base64.b64encode(bytes(range(256))).decode()
    publish(api, vhost, queue, body, payload_encoding="base64")
    assert channel.basic_get(queue, auto_ack=True)[2] == bytes(range(256))


def test_large_messages_pass(api, vhost, queue):
    publish(api, vhost, queue, "x" * 5_000_000)
    seen = take(api, vhost, queue, truncate=10)[0]
    assert (seen["payload"], seen["payload_bytes"]) == ("x" * 10, 5_000_000)


def test_message_beyond_the_limit_is_refused():
    body = {"routing_key": "q", "payload": "x" * 1_000_001, "properties": {}}
    with LeveretBroker(http_enabled=True, max_message_size=1_000_000) as broker:
        api = Api(broker.http_url)
        status, reason = api.refused("POST", "exchanges", "/", "amq.default", "publish", body=body)
        api.http.close()
    assert status == 400 and "larger than max size" in reason


def test_publish_follows_bindings_and_cc(api, vhost, channel):
    for name in ("a", "b", "c"):
        api.put("queues", vhost, name)
    api.put("exchanges", vhost, "x", body={"type": "topic"})
    channel.queue_bind("a", "x", "k.*")
    channel.queue_bind("b", "x", "other")
    publish(api, vhost, "k.1", exchange="x", properties={"headers": {"CC": ["other"]}})
    assert [len(take(api, vhost, name)) for name in ("a", "b", "c")] == [1, 1, 0]


def test_bcc_keys_are_not_shown(api, vhost, queue):
    publish(api, vhost, "none", properties={"headers": {"BCC": [queue], "n": 1}})
    assert take(api, vhost, queue)[0]["properties"]["headers"] == {"n": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"payload_encoding": "rot13"}, "payload_encoding"),
        ({"payload_encoding": "base64", "payload": "%"}, "base64"),
        ({"properties": {"priority": "3"}}, "priority"),
        ({"properties": {"correlation_id": 5}}, "correlation_id"),
        ({"properties": {"headers": 5}}, "headers"),
        ({"properties": {"headers": {"n": 1 << 70}}}, "AMQP"),
        ({"properties": {"user_id": "somebody"}}, "user_id property set to 'somebody'"),
        ({"properties": {"expiration": "soon"}}, "invalid expiration 'soon'"),
        ({"properties": {"headers": {"CC": 5}}}, "invalid CC header"),
        ({"routing_key": "k" * 256}, "AMQP"),
        ({"routing_key": None}, "routing_key"),
    ],
)
def test_publish_refusals_have_a_reason(api, vhost, queue, change, reason):
    body = {"routing_key": queue, "payload": "hi", "payload_encoding": "string",
            "properties": {}} | change  # fmt: skip
    status, said = api.refused("POST", "exchanges", vhost, "amq.default", "publish", body=body)
    assert status == 400 and reason in said
    assert api.get("queues", vhost, queue)["messages"] == 0


def test_publish_to_unknown_exchange_is_not_found(api, vhost):
    body = {"routing_key": "", "payload": "", "properties": {}}
    status, reason = api.refused("POST", "exchanges", vhost, "no", "publish", body=body)
    assert (status, reason) == (404, f"no exchange 'no' in vhost '{vhost}'")


def test_publish_needs_write_permission(api, vhost, queue, sign_in):
    api.put("users", "reader", body={"password": "pw", "tags": "management"})
    api.put("permissions", vhost, "reader", body={"configure": "", "write": "", "read": ".*"})
    reader = sign_in("reader", "pw")
    body = {"routing_key": queue, "payload": "hi", "properties": {}}
    status, reason = reader.refused("POST", "exchanges", vhost, "amq.default", "publish", body=body)
    assert status == 403 and "write access to exchange 'amq.default'" in reason


@pytest.mark.parametrize("digits", [10, 30, 5000])
def test_browsing_from_far_beyond_the_end_is_refused(api, vhost, queue, digits):
    status, reason = api.refused("GET", "queues", vhost, queue, "browse", offset="9" * digits)
    assert status == 400 and reason.startswith("query.offset: ")


def test_publish_is_refused_while_an_alarm_is_raised(api, vhost, queue, leveret, hub):
    def alarm(reason):
        leveret._loop.call_soon_threadsafe(hub.alarms.set, "test", reason)
        wait_until(lambda: hub.alarms.raised.get("test", "") == reason)

    alarm("low on carrots")
    body = {"routing_key": queue, "payload": "hi", "properties": {}}
    refused = api.refused("POST", "exchanges", vhost, "amq.default", "publish", body=body)
    alarm("")
    assert refused == (503, "publishing is blocked: low on carrots")
    assert publish(api, vhost, queue) == {"routed": True}


def test_answered_publish_survives_a_restart(tmp_path):
    settings = in_process_settings(http_enabled=True, data_dir=tmp_path)
    with ThreadedBroker(settings) as first:
        api = Api(first.http_url)
        api.put("queues", "/", "q", body={"durable": True})
        publish(api, "/", "q", "kept", properties={"delivery_mode": 2})
        publish(api, "/", "q", "lost", properties={"delivery_mode": 1})
        api.http.close()
    with ThreadedBroker(settings) as second:
        api = Api(second.http_url)
        assert [one["payload"] for one in take(api, "/", "q")] == ["kept"]
        api.http.close()


# Get ---------------------------------------------------------------------------------------------


def test_get_returns_the_fields_of_rabbitmq(api, vhost, queue):
    publish(api, vhost, queue, "one", properties={"delivery_mode": 2, "headers": {"a": 1}})
    publish(api, vhost, queue, "two")
    first, second = take(api, vhost, queue)
    assert first == {
        "payload": "one",
        "payload_bytes": 3,
        "payload_encoding": "string",
        "redelivered": False,
        "exchange": "",
        "routing_key": queue,
        "message_count": 1,
        "properties": {"delivery_mode": 2, "headers": {"a": 1}},
    }
    assert (second["message_count"], second["properties"]) == (0, {})


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("ack_requeue_true", 2),
        ("ack_requeue_false", 0),
        ("reject_requeue_true", 2),
        ("reject_requeue_false", 0),
    ],
)
def test_ackmode_decides_which_messages_are_requeued(api, vhost, queue, mode, left):
    publish(api, vhost, queue, "a")
    publish(api, vhost, queue, "b")
    assert [one["payload"] for one in take(api, vhost, queue, mode)] == ["a", "b"]
    again = take(api, vhost, queue)
    assert len(again) == left and all(one["redelivered"] for one in again)


def test_get_takes_at_most_count(api, vhost, queue):
    for number in range(3):
        publish(api, vhost, queue, str(number))
    assert [one["payload"] for one in take(api, vhost, queue, count=2)] == ["0", "1"]
    assert [one["payload"] for one in take(api, vhost, queue, count="2")] == ["2"]
    assert take(api, vhost, queue) == []


def test_truncated_text_stays_text(api, vhost, queue):
    publish(api, vhost, queue, "aä")
    seen = take(api, vhost, queue, "ack_requeue_true", truncate=2)[0]
    assert (seen["payload"], seen["payload_bytes"], seen["payload_encoding"]) == ("a", 3, "string")
    seen = take(api, vhost, queue, encoding="base64", truncate=2)[0]
    assert (seen["payload"], seen["payload_encoding"]) == ("YcM=", "base64")


def test_binary_bodies_are_returned_as_base64(api, vhost, queue, channel):
    headers = {"raw": b"\xff\x00", "when": pika.BasicProperties(timestamp=1).timestamp}
    channel.basic_publish("", queue, b"\xff\xfe", pika.BasicProperties(headers=headers))
    seen = take(api, vhost, queue, wait=5)[0]
    assert (seen["payload"], seen["payload_encoding"]) == ("//4=", "base64")
    assert seen["properties"]["headers"] == {"raw": "/wA=", "when": 1}


@pytest.mark.parametrize(
    "body",
    [
        {"count": 0},
        {"count": "many"},
        {"ackmode": "maybe"},
        {"encoding": "rot13"},
        {"wait": 21},
        {"truncate": -1},
    ],
)
def test_get_refusals_have_a_reason(api, vhost, queue, body):
    whole = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"} | body
    status, reason = api.refused("POST", "queues", vhost, queue, "get", body=whole)
    assert status == 400 and reason.startswith(next(iter(body)))


def test_get_from_unknown_queue_is_not_found(api, vhost):
    status, reason = api.refused("POST", "queues", vhost, "no", "get", body={"count": 1})
    assert (status, reason) == (404, f"no queue 'no' in vhost '{vhost}'")


def test_waiting_get_returns_when_a_message_arrives(api, vhost, queue, leveret):
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(take(api, vhost, queue, wait=15)))
    waiting.start()
    other = Api(leveret.http_url)
    deadline = time.monotonic() + 60
    while waiting.is_alive() and time.monotonic() < deadline:
        if not answers:
            publish(other, vhost, queue, "at last")
        waiting.join(0.2)
    other.http.close()
    assert answers and answers[0][0]["payload"] == "at last"


def test_waiting_get_times_out(api, vhost, queue):
    began = time.monotonic()
    assert take(api, vhost, queue, wait=0.3) == []
    assert time.monotonic() - began > 0.25


def test_waiting_get_ends_when_its_queue_is_deleted(api, vhost, queue, leveret):
    """The wait is longer than the client's timeout: deleting the queue ends it."""
    answers: list[int] = []
    api.http.timeout = 18
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto", "wait": 20}

    def ask():
        answers.append(api.call("POST", "queues", vhost, queue, "get", body=body).status_code)

    waiting = threading.Thread(target=ask)
    waiting.start()
    other = Api(leveret.http_url)
    other.delete("queues", vhost, queue)
    waiting.join()
    other.http.close()
    # It was deleted during the request or before it.
    assert answers in ([200], [404])


def test_client_that_disconnects_while_waiting_consumes_nothing(api, vhost, queue, leveret, hub):
    """`leveret consume`, interrupted: what comes a moment later must not be lost."""
    held = hub.vhosts[vhost].queues[queue]
    url = urlsplit(leveret.http_url)
    body = json.dumps({"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto", "wait": 15})
    login = base64.b64encode(b"guest:guest").decode()
    with socket.create_connection((url.hostname or "", url.port or 0)) as sock:
        sock.sendall(
            f"POST /api/queues/{quote(vhost, safe='')}/{queue}/get HTTP/1.1\r\n"
            f"Host: {url.netloc}\r\nAuthorization: Basic {login}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        wait_until(lambda: held._get_waiters)
    publish(api, vhost, queue, "precious")
    assert [one["payload"] for one in take(api, vhost, queue, wait=10)] == ["precious"]


def test_get_reads_messages_that_are_only_on_disk(tmp_path):
    """More than the queue holds in memory: content beyond the window comes from the store."""
    settings = in_process_settings(http_enabled=True, data_dir=tmp_path, queue_window=10)
    with ThreadedBroker(settings) as running:
        api = Api(running.http_url)
        api.put("queues", "/", "q", body={"durable": True})
        connection = pika.BlockingConnection(pika.URLParameters(running.url))
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(50):
            channel.basic_publish("", "q", str(number), pika.BasicProperties(delivery_mode=2))
        connection.close()
        got = take(api, "/", "q", count=50)
        assert [one["payload"] for one in got] == [str(number) for number in range(50)]
        api.http.close()


# Browse ------------------------------------------------------------------------------------------


def test_browse_consumes_nothing(api, vhost, queue):
    publish(api, vhost, queue, "one", properties={"message_id": "7"})
    for _ in range(2):
        seen = api.get("queues", vhost, queue, "browse")
        assert [(one["payload"], one["state"], one["redelivered"]) for one in seen] == [
            ("one", "ready", False)
        ]
        assert seen[0]["properties"] == {"message_id": "7"}
        assert seen[0]["position"] == 1 and seen[0]["id"] > 0 and seen[0]["age_ms"] >= 0
    assert api.get("queues", vhost, queue)["messages_ready"] == 1


def test_browse_shows_unacked_first(api, vhost, queue, channel):
    for number in range(4):
        publish(api, vhost, queue, str(number))
    channel.basic_get(queue)
    channel.basic_get(queue)
    seen = api.get("queues", vhost, queue, "browse")
    states = [(one["payload"], one["state"]) for one in seen]
    assert states == [("0", "unacked"), ("1", "unacked"), ("2", "ready"), ("3", "ready")]


@pytest.fixture(scope="module")
def long_queue(leveret):
    """A queue of 300 messages with a window of 100: two thirds are on disk only."""
    connection = pika.BlockingConnection(pika.URLParameters(leveret.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("long", durable=True)
    for number in range(300):
        channel.basic_publish("", "long", str(number), pika.BasicProperties(delivery_mode=2))
    yield "long"
    channel.queue_delete("long")
    connection.close()


@pytest.mark.parametrize(("offset", "count"), [(0, 1), (0, 300), (95, 10), (100, 50), (290, 50)])
def test_browse_pages_through_memory_and_disk(api, long_queue, offset, count):
    seen = api.get("queues", "/", long_queue, "browse", offset=offset, count=count)
    wanted = range(offset, min(300, offset + count))
    assert [one["payload"] for one in seen] == [str(number) for number in wanted]
    assert [one["position"] for one in seen] == [number + 1 for number in wanted]


def test_browse_beyond_the_end_is_empty(api, long_queue):
    assert api.get("queues", "/", long_queue, "browse", offset=300) == []


def test_browse_truncates_bodies(api, vhost, queue):
    publish(api, vhost, queue, "long text")
    seen = api.get("queues", vhost, queue, "browse", truncate=4)[0]
    assert (seen["payload"], seen["payload_bytes"]) == ("long", 9)


def test_browse_refuses_invalid_parameters(api, vhost, queue):
    assert api.refused("GET", "queues", vhost, queue, "browse", count=0)[0] == 400
    assert api.refused("GET", "queues", vhost, queue, "browse", offset=-1)[0] == 400
    assert api.refused("GET", "queues", vhost, "no", "browse")[0] == 404


# Dry run -----------------------------------------------------------------------------------------


def way(api, vhost, exchange, key, headers=None):
    body = {"exchange": exchange, "routing_key": key, "headers": headers or {}}
    answer = api.post("route", vhost, body=body)
    steps = [(step["source"], step["destination"], step["destination_type"])
             for step in answer["path"]]  # fmt: skip
    return answer["queues"], steps


def test_dry_run_follows_exchanges_and_publishes_nothing(api, vhost, channel):
    channel.exchange_declare("first", "topic")
    channel.exchange_declare("second", "fanout")
    for name in ("a", "b"):
        channel.queue_declare(name)
    channel.exchange_bind("second", "first", "deep.#")
    channel.queue_bind("a", "first", "deep.*")
    channel.queue_bind("b", "second", "")
    queues, steps = way(api, vhost, "first", "deep.x")
    assert sorted(queues) == ["a", "b"]
    assert sorted(steps) == [
        ("first", "a", "queue"),
        ("first", "second", "exchange"),
        ("second", "b", "queue"),
    ]
    assert way(api, vhost, "first", "shallow") == ([], [])
    assert [api.get("queues", vhost, name)["messages"] for name in ("a", "b")] == [0, 0]


def test_dry_run_reads_headers(api, vhost, channel):
    channel.queue_declare("a")
    channel.queue_bind("a", "amq.headers", "", {"x-match": "any", "colour": "red", "n": 1})
    assert way(api, vhost, "amq.headers", "", {"colour": "red"})[0] == ["a"]
    assert way(api, vhost, "amq.headers", "", {"colour": "blue"})[0] == []


def test_dry_run_of_the_default_exchange(api, vhost, queue):
    assert way(api, vhost, "", queue) == ([queue], [("", queue, "queue")])
    assert way(api, vhost, "amq.default", "no") == ([], [])


def test_dry_run_from_unknown_exchange_is_not_found(api, vhost):
    body = {"exchange": "no", "routing_key": "", "headers": {}}
    assert api.refused("POST", "route", vhost, body=body)[0] == 404
