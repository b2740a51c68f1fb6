"""Republished messages are marked redelivered if consumers may have seen them before a crash."""

from __future__ import annotations

import os
import secrets
import signal
import time

import pytest

from leveret.model.clock import ManualClock
from leveret.queues.entry import Outcome
from tests.features.harness import BrokerHarness
from tests.support.brokers import running_leveret

DOOMED = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
DELAYED = {"x-delayed-type": "fanout"}
HOUR_MS = 3_600_000


def first_run(folder, *, crash, is_read=True, priorities=None):
    """Leave a message in `doomed` and another in `later`; both target queues had a consumer."""
    with running_leveret("--data-dir", str(folder)) as target:
        client = target.connect()
        channel = client.channel()
        arguments = {} if priorities is None else {"x-max-priority": priorities}
        channel.declare("dlq", durable=True, arguments=arguments)
        channel.declare("due", durable=True)
        channel.declare("doomed", durable=True, arguments=DOOMED)
        channel.exchange("later", "x-delayed-message", durable=True, arguments=DELAYED)
        channel.bind("due", "later")
        for queue in ("dlq", "due") if is_read else ():
            channel.consume(queue)
            channel.publish("", queue, b"seen", delivery_mode=2)
            channel.ack(channel.deliver().tag)
        channel.publish("", "doomed", b"old", delivery_mode=2)
        channel.publish("later", "", b"old", delivery_mode=2, headers={"x-delay": HOUR_MS})
        # The reply to a durable declare comes when it and all earlier work are on disk.
        channel.declare(f"barrier-{secrets.token_hex()}", durable=True)
        if crash:
            os.kill(target.pid, signal.SIGKILL)
        client.drop()


async def second_run(folder, **settings):
    return await BrokerHarness.start(folder, ManualClock(int(time.time() * 1000)), **settings)


def redelivered(harness, queue):
    return {entry.message.body: entry.redelivered for entry in harness.vhost.queues[queue].ready}


async def dead_letter(harness):
    await harness.until(lambda: bool(harness.vhost.queues["doomed"].ready))
    await harness.take("doomed", outcome=Outcome.REJECT)


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "stop"])
@pytest.mark.parametrize("priorities", [None, 3], ids=["plain", "priorities"])
async def test_dead_letter_is_redelivered_if_seen_before_a_crash(tmp_path, crash, priorities):
    first_run(tmp_path, crash=crash, priorities=priorities)
    harness = await second_run(tmp_path)
    await dead_letter(harness)
    harness.publish("", "doomed", b"new")
    await dead_letter(harness)
    assert redelivered(harness, "dlq") == {b"old": crash, b"new": False}
    await harness.stop()


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "stop"])
async def test_dead_letter_behind_a_disk_backlog_is_redelivered(tmp_path, crash):
    first_run(tmp_path, crash=crash)
    harness = await second_run(tmp_path, queue_window=1)
    harness.publish("", "dlq", b"first")
    await dead_letter(harness)
    harness.publish("", "doomed", b"new")
    await dead_letter(harness)
    assert (len(harness.vhost.queues["dlq"].ready), harness.vhost.queues["dlq"].ready_count) == (
        1,
        3,
    )
    await harness.take("dlq", 1)
    await harness.until(lambda: len(harness.vhost.queues["dlq"].ready) == 2)
    assert redelivered(harness, "dlq") == {b"old": crash, b"new": False}
    await harness.stop()


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "stop"])
async def test_delayed_message_is_redelivered_if_seen_before_a_crash(tmp_path, crash):
    first_run(tmp_path, crash=crash)
    harness = await second_run(tmp_path)
    harness.publish("later", "", b"new", headers={"x-delay": HOUR_MS})
    await harness.settle()
    await harness.advance(2 * HOUR_MS / 1000)
    await harness.until(lambda: len(harness.vhost.queues["due"].ready) == 2)
    assert redelivered(harness, "due") == {b"old": crash, b"new": False}
    await harness.stop()


async def test_message_is_not_redelivered_without_earlier_consumers(tmp_path):
    first_run(tmp_path, crash=True, is_read=False)
    harness = await second_run(tmp_path)
    await dead_letter(harness)
    await harness.advance(2 * HOUR_MS / 1000)
    await harness.until(lambda: len(harness.vhost.queues["due"].ready) == 1)
    assert (redelivered(harness, "dlq"), redelivered(harness, "due")) == (
        {b"old": False},
        {b"old": False},
    )
    await harness.stop()
