"""What the broker sends on may have been seen before a crash that undid it: then it is marked."""

from __future__ import annotations

import os
import secrets
import signal
import time

import pytest

from leveret.model.clock import ManualClock
from queues import Outcome
from tests.features.hub import Hub
from tests.support.brokers import running_leveret

DOOMED = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}
DELAYED = {"x-delayed-type": "fanout"}
HOUR_MS = 3_600_000


def first_life(folder, *, crash, is_read=True, priorities=None):
    """A message waits in `doomed` and one at `later`; a consumer has had one from both queues."""
    with running_leveret("--data-dir", str(folder)) as target:
        client = target.connect()
        channel = client.channel()
        ordered = {} if priorities is None else {"x-max-priority": priorities}
        channel.declare("grave", durable=True, arguments=ordered)
        channel.declare("due", durable=True)
        channel.declare("doomed", durable=True, arguments=DOOMED)
        channel.exchange("later", "x-delayed-message", durable=True, arguments=DELAYED)
        channel.bind("due", "later")
        for queue in ("grave", "due") if is_read else ():
            channel.consume(queue)
            channel.publish("", queue, b"seen", delivery_mode=2)
            channel.ack(channel.deliver().tag)
        channel.publish("", "doomed", b"old", delivery_mode=2)
        channel.publish("later", "", b"old", delivery_mode=2, headers={"x-delay": HOUR_MS})
        # A new queue is declared when it is on disk, and then everything before it is, too.
        channel.declare(f"mark-{secrets.token_hex()}", durable=True)
        if crash:
            os.kill(target.pid, signal.SIGKILL)
        client.drop()


async def second_life(folder):
    return await Hub.start(folder, ManualClock(int(time.time() * 1000)))


def held(hub, queue):
    return {entry.message.body: entry.redelivered for entry in hub.vhost.queues[queue].ready}


async def die(hub):
    await hub.until(lambda: bool(hub.vhost.queues["doomed"].ready))
    await hub.take("doomed", outcome=Outcome.REJECT)


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "stop"])
@pytest.mark.parametrize("priorities", [None, 3], ids=["plain", "priorities"])
async def test_a_dead_letter_is_marked_if_it_may_have_come_before_a_crash(
    tmp_path, crash, priorities
):
    first_life(tmp_path, crash=crash, priorities=priorities)
    hub = await second_life(tmp_path)
    await die(hub)
    hub.publish("", "doomed", b"new")
    await die(hub)
    assert held(hub, "grave") == {b"old": crash, b"new": False}
    await hub.stop()


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "stop"])
async def test_so_is_what_was_delayed(tmp_path, crash):
    first_life(tmp_path, crash=crash)
    hub = await second_life(tmp_path)
    hub.publish("later", "", b"new", headers={"x-delay": HOUR_MS})
    await hub.settle()
    await hub.advance(2 * HOUR_MS / 1000)
    await hub.until(lambda: len(hub.vhost.queues["due"].ready) == 2)
    assert held(hub, "due") == {b"old": crash, b"new": False}
    await hub.stop()


async def test_nothing_is_marked_where_nobody_has_read(tmp_path):
    first_life(tmp_path, crash=True, is_read=False)
    hub = await second_life(tmp_path)
    await die(hub)
    await hub.advance(2 * HOUR_MS / 1000)
    await hub.until(lambda: len(hub.vhost.queues["due"].ready) == 1)
    assert (held(hub, "grave"), held(hub, "due")) == ({b"old": False}, {b"old": False})
    await hub.stop()
