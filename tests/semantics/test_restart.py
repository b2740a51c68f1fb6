"""Rows C-17, C-92 and C-93: alarms and restarts, which need a separate Leveret."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from pamqp.commands import Basic, Connection, Exchange, Queue

from tests.support import wire
from tests.support.brokers import running_leveret
from tests.support.fixtures import WITHOUT_HTTP

MIB = 1024 * 1024
MESSAGES = 9  # one more than fits, but unread messages must still fit into the socket buffers


@pytest.fixture
def small_broker():
    """A broker with a memory alarm at 8 MiB of messages; the process itself uses more."""
    limit = {"LEVERET_MEMORY_HIGH_WATERMARK": "16MiB"}
    with running_leveret(environment=WITHOUT_HTTP | limit) as target:
        yield target


def flood(client, queue):
    """Publish more than the memory limit allows, until the connection is blocked."""
    channel = client.channel()
    channel.declare(queue)
    for _ in range(MESSAGES):
        channel.publish("", queue, b"x" * MIB)
    assert "memory" in client.expect(Connection.Blocked).reason
    return channel


def test_c017_memory_alarm_blocks_publishers_until_it_clears(small_broker):
    with small_broker.connect() as client, small_broker.connect() as reader:
        channel = flood(client, "big")
        channel.publish("", "big", b"waits")
        consumer = reader.channel()
        assert consumer.ready("big") >= 8
        client.expect_silence(0)  # sent only once
        consumer.consume("big", no_ack=True)
        assert {len(messages.body) for messages in consumer.deliveries(MESSAGES)} == {MIB}
        client.expect(Connection.Unblocked)
        assert consumer.deliver().body == b"waits"


def test_c017_connection_that_starts_publishing_during_the_alarm_is_notified(small_broker):
    with small_broker.connect() as client, small_broker.connect() as late:
        flood(client, "big")
        channel = late.channel()
        late.expect_silence(0, 0.05)
        channel.publish("", "big", b"late")
        late.expect(Connection.Blocked)
        channel.publish("", "big", b"later")
        with small_broker.connect() as other:
            other.channel().call(Queue.Purge(queue="big"))
            late.expect(Connection.Unblocked)
            other.channel(2).consume("big", no_ack=True)
            while other.content(Basic.Deliver, 2).body != b"later":
                pass


def test_c017_client_without_the_blocked_capability_is_only_paused(small_broker):
    with small_broker.connect() as client, small_broker.connect(capabilities={}) as old:
        flood(client, "big")
        channel = old.channel()
        before = channel.ready("big")
        channel.publish("", "big", b"old")
        with small_broker.connect() as other:
            other.channel().wait_ready("big", before + 1)  # the broker has seen the publish
        channel.send(Queue.Declare(queue="big", passive=True))
        old.expect_silence()
        with small_broker.connect() as other:
            other.channel().consume("big", no_ack=True)
            while other.content(Basic.Deliver, 1).body != b"old":
                pass
        channel.expect(Queue.DeclareOk)


def test_c017_heartbeats_continue_while_blocked(small_broker):
    with small_broker.connect(heartbeat=1) as client:
        flood(client, "big")
        beats = 0
        while beats < 6:  # longer than the heartbeat timeout
            assert client.next_frame().kind == wire.HEARTBEAT
            beats += 1


@contextlib.contextmanager
def durable_broker(path):
    with running_leveret("--data-dir", str(path), environment=WITHOUT_HTTP) as target:
        yield target


def prepare(channel):
    """Durable and transient queues and exchanges, bound to each other in every way."""
    for name, durable in (("dx", True), ("tx", False)):
        channel.exchange(name, "topic", durable=durable)
    channel.exchange("dx2", "fanout", durable=True, arguments={"alternate-exchange": "dx"})
    for name, durable in (("dq", True), ("tq", False)):
        channel.declare(name, durable=durable)
    for queue in ("dq", "tq"):
        for exchange in ("dx", "tx"):
            channel.bind(queue, exchange, f"{queue}.#", {"note": 1})
    channel.call(Exchange.Bind(destination="dx", source="dx2", routing_key="k"))
    channel.confirm_select()
    for number in range(4):
        channel.publish("dx", "dq.a", b"keep%d" % number, delivery_mode=2, headers={"n": number})
        channel.publish("dx", "dq.a", b"lose%d" % number, delivery_mode=1)
    channel.publish("", "dq", b"lose too")
    channel.confirmed(9)


def check_restored(channel):
    messages = [channel.get_one("dq") for _ in range(channel.ready("dq"))]
    assert [(item.body, item.headers) for item in messages] == [
        (b"keep%d" % number, {"n": number}) for number in range(4)
    ]
    assert (messages[0].method.exchange, messages[0].method.routing_key) == ("dx", "dq.a")
    channel.exchange("dx", "topic", durable=True)
    channel.exchange("dx2", "fanout", durable=True, arguments={"alternate-exchange": "dx"})
    channel.declare("dq", durable=True)
    channel.publish("dx2", "dq.through", b"bound", delivery_mode=2)
    channel.wait_ready("dq", 1)
    for missing in (
        Queue.Declare(queue="tq", passive=True),
        Exchange.Declare(exchange="tx", passive=True),
    ):
        channel.refused(missing, 404)
        channel.open()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["clean", "killed"])
def test_c093_durable_topology_and_persistent_messages_survive(tmp_path, end):
    with durable_broker(tmp_path) as broker, broker.connect() as client:
        prepare(client.channel())
        client.drop()
        os.kill(broker.pid, end)
    with durable_broker(tmp_path) as broker, broker.connect() as client:
        check_restored(client.channel())


def test_c093_unacked_messages_are_redelivered_and_acked_ones_are_not(tmp_path):
    with durable_broker(tmp_path) as broker, broker.connect() as client:
        channel = client.channel()
        prepare(channel)
        messages = [channel.get_one("dq", no_ack=False) for _ in range(3)]
        assert [item.body for item in messages] == [b"keep0", b"lose0", b"keep1"]
        channel.ack(1)
        channel.call(Basic.Qos(prefetch_count=4))  # the answer means that the ack is on disk
        os.kill(broker.pid, signal.SIGKILL)
    with durable_broker(tmp_path) as broker, broker.connect() as client:
        channel = client.channel()
        messages = [channel.get_one("dq") for _ in range(channel.ready("dq"))]
        assert [item.body for item in messages] == [b"keep1", b"keep2", b"keep3"]
        assert messages[0].redelivered


def test_c092_transient_messages_and_exclusive_queues_do_not_survive(tmp_path):
    with durable_broker(tmp_path) as broker, broker.connect() as client:
        channel = client.channel()
        channel.declare("dq", durable=True)
        channel.declare("own", durable=True, exclusive=True)
        channel.fill("dq", ["transient"])
        channel.publish("", "own", delivery_mode=2)
    with durable_broker(tmp_path) as broker, broker.connect() as client:
        channel = client.channel()
        assert channel.ready("dq") == 0
        channel.refused(Queue.Declare(queue="own", passive=True), 404)
