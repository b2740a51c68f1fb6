"""Delivery counts survive restarts and `kill -9`, with and without history."""

from __future__ import annotations

import os
import secrets
import signal

from leveret.broker.policies.policies import Policy
from leveret.queues.entry import Outcome
from tests.features.harness import BrokerHarness
from tests.support.brokers import running_leveret

QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": 2, "x-dead-letter-exchange": "",
          "x-dead-letter-routing-key": "dlq"}  # fmt: skip


def delivery_count(message):
    return message.headers().get("x-delivery-count")


def deliver_and_crash(folder, *, is_first=False, requeue=False):
    """Deliver the message with a broker process that is then killed; its last delivery count."""
    arguments = ("--data-dir", str(folder), "--set", "history=off")
    with running_leveret(*arguments) as target:
        client = target.connect()
        channel = client.channel()
        channel.declare("dlq", durable=True)
        channel.declare("work", durable=True, arguments=QUORUM)
        if is_first:
            channel.publish("", "work", b"poison", delivery_mode=2)
        channel.consume("work")
        delivery = channel.deliver()
        if requeue:
            channel.nack(delivery.tag)
            delivery = channel.deliver()
        # The reply to a durable declare comes when it and all earlier work are on disk.
        channel.declare(f"barrier-{secrets.token_hex()}", durable=True)
        os.kill(target.pid, signal.SIGKILL)
        client.drop()
        return delivery.headers.get("x-delivery-count")


def test_message_that_crashes_the_broker_reaches_its_limit(tmp_path):
    first = deliver_and_crash(tmp_path, is_first=True)
    assert (first, deliver_and_crash(tmp_path, requeue=True)) == (None, 2)
    with running_leveret("--data-dir", str(tmp_path)) as target, target.connect() as client:
        channel = client.channel()
        channel.wait_ready("dlq", 1)
        assert channel.ready("work") == 0
        dead = channel.get_one("dlq")
        assert dead.headers["x-death"][0]["reason"] == "delivery_limit"


async def requeue(harness, times):
    for _ in range(times):
        await harness.take("q", outcome=Outcome.REQUEUE)


async def test_snapshots_contain_delivery_counts(tmp_path):
    harness = await BrokerHarness.start(tmp_path, history="off")
    queue = harness.queue("q", delivery_limit=9)
    harness.publish("", "q", b"a")
    await requeue(harness, 2)
    harness.publish("", "q", b"b")
    await requeue(harness, 1)
    queue.snapshot()  # without history, earlier events are deleted
    harness = await harness.restart()
    # Only the head is read again: the other count must be kept for the message on disk.
    await harness.until(lambda: len(harness.vhost.queues["q"].ready) == 1)
    assert [delivery_count(entry.message) for entry in harness.vhost.queues["q"].ready] == [3]
    harness = await harness.restart()
    assert [delivery_count(message) for message in await harness.take("q")] == [3, 1]
    await harness.stop()


async def test_snapshots_contain_delivery_counts_of_messages_on_disk(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("q", delivery_limit=9)
    for number in range(3):
        harness.publish("", "q", b"%d" % number)
    await requeue(harness, 2)
    await harness.settle()
    ids = [entry.id for entry in harness.vhost.queues["q"].ready]
    await harness.stop()
    harness = BrokerHarness(tmp_path, harness.clock)
    harness.broker.start()
    queue = harness.vhost.queues["q"]
    assert not queue.ready and len(ids) == 3
    assert [(list(part.ids), part.detail) for part in queue.delivery_attempts()] == [
        (ids, "attempts 2")
    ]
    queue.snapshot()
    harness = await harness.restart()
    assert [delivery_count(message) for message in await harness.take("q")] == [2, 2, 2]
    await harness.stop()


async def test_delivery_limit_by_policy_continues_after_a_restart(tmp_path):
    harness = await BrokerHarness.start(tmp_path, history="off")
    limit = Policy("/", "p", "^q", definition={"delivery-limit": 2})
    harness.broker.policies.put(limit)
    harness.queue("q")
    harness.publish("", "q", b"x")
    await requeue(harness, 2)
    harness = await harness.restart()
    assert [
        delivery_count(message) for message in await harness.take("q", outcome=Outcome.REQUEUE)
    ] == [2]
    assert await harness.bodies("q") == []
    await harness.stop()


async def test_queue_without_a_limit_writes_no_counts(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    queue = harness.queue("q")
    harness.publish("", "q", b"x")
    await requeue(harness, 2)
    assert queue.delivery_attempts() == ()
    harness = await harness.restart()
    (message,) = await harness.take("q")
    assert delivery_count(message) is None
    await harness.stop()
