"""The delivery limit counts on over restarts and `kill -9`, with and without history."""

from __future__ import annotations

import os
import secrets
import signal

from leveret.broker.policies import Policy
from queues import Outcome
from queues.attempts import attempts_of
from tests.features.hub import Hub
from tests.support.brokers import running_leveret

QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": 2, "x-dead-letter-exchange": "",
          "x-dead-letter-routing-key": "grave"}  # fmt: skip


def counts(message):
    return message.headers().get("x-delivery-count")


def deliver_and_die(folder, *, is_first=False, give_back=False):
    """A broker in a process of its own hands the message out, and is killed."""
    arguments = ("--data-dir", str(folder), "--set", "history=off")
    with running_leveret(*arguments) as target:
        client = target.connect()
        channel = client.channel()
        channel.declare("grave", durable=True)
        channel.declare("work", durable=True, arguments=QUORUM)
        if is_first:
            channel.publish("", "work", b"poison", delivery_mode=2)
        channel.consume("work")
        got = channel.deliver()
        if give_back:
            channel.nack(got.tag)
            got = channel.deliver()
        # A new queue is declared when it is on disk, and then everything before it is, too.
        channel.declare(f"mark-{secrets.token_hex()}", durable=True)
        os.kill(target.pid, signal.SIGKILL)
        client.drop()
        return got.headers.get("x-delivery-count")


def test_a_message_that_brings_the_broker_down_reaches_its_limit(tmp_path):
    first = deliver_and_die(tmp_path, is_first=True)
    assert (first, deliver_and_die(tmp_path, give_back=True)) == (None, 2)
    with running_leveret("--data-dir", str(tmp_path)) as target, target.connect() as client:
        channel = client.channel()
        channel.wait_ready("grave", 1)
        assert channel.ready("work") == 0
        dead = channel.get_one("grave")
        assert dead.headers["x-death"][0]["reason"] == "delivery_limit"


async def returned(hub, times):
    for _ in range(times):
        await hub.take("q", outcome=Outcome.REQUEUE)


async def test_counts_are_in_snapshots(tmp_path):
    hub = await Hub.start(tmp_path, history="off")
    queue = hub.queue("q", delivery_limit=9)
    hub.publish("", "q", b"a")
    await returned(hub, 2)
    hub.publish("", "q", b"b")
    await returned(hub, 1)
    queue.snapshot()  # without history, nothing before it is kept
    hub = await hub.restart()
    await hub.until(lambda: len(hub.vhost.queues["q"].ready) == 2)
    assert [counts(entry.message) for entry in hub.vhost.queues["q"].ready] == [3, 1]
    hub = await hub.restart()
    assert [counts(message) for message in await hub.take("q")] == [3, 1]
    await hub.stop()


async def test_counts_of_what_is_on_disk_only_are_in_snapshots_too(tmp_path):
    hub = await Hub.start(tmp_path)
    hub.queue("q", delivery_limit=9)
    for number in range(3):
        hub.publish("", "q", b"%d" % number)
    await returned(hub, 2)
    await hub.settle()
    await hub.stop()
    hub = Hub(tmp_path, hub.clock)
    hub.broker.start()
    queue = hub.vhost.queues["q"]
    assert not queue.ready and len(queue.paging.attempts) == 3
    assert [(list(part.ids), part.detail) for part in attempts_of(queue)] == [
        (list(queue.paging.attempts), "attempts 2")
    ]
    queue.snapshot()
    hub = await hub.restart()
    assert [counts(message) for message in await hub.take("q")] == [2, 2, 2]
    await hub.stop()


async def test_a_limit_set_by_policy_counts_on_over_a_restart(tmp_path):
    hub = await Hub.start(tmp_path, history="off")
    limit = Policy("/", "p", "^q", definition={"delivery-limit": 2})
    hub.broker.policies.put(limit)
    hub.queue("q")
    hub.publish("", "q", b"x")
    await returned(hub, 2)
    hub = await hub.restart()
    assert [counts(message) for message in await hub.take("q", outcome=Outcome.REQUEUE)] == [2]
    assert await hub.bodies("q") == []
    await hub.stop()


async def test_a_queue_without_a_limit_writes_no_counts(tmp_path):
    hub = await Hub.start(tmp_path)
    queue = hub.queue("q")
    hub.publish("", "q", b"x")
    await returned(hub, 2)
    assert attempts_of(queue) == ()
    hub = await hub.restart()
    (message,) = await hub.take("q")
    assert counts(message) is None
    await hub.stop()
