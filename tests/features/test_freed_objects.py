"""Deleted objects are freed, so that memory does not grow with their number."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.amqp_server.ack_timeout import AckTimeouts
from leveret.queues.spec import QueueSpec
from tests.support.references import reference_to


def is_freed(harness, reference):
    harness.broker.metrics.sample()  # the last sample may hold a reference
    gc.collect()
    return reference() is None


@pytest.mark.parametrize("durable", [True, False])
async def test_deleted_queue_is_freed_before_its_expiry(harness, durable):
    queue = harness.queue("q", durable, expires=86_400_000, message_ttl=3_600_000)
    harness.publish("", "q", b"x")
    await harness.settle()
    harness.vhost.delete_queue("q")
    await harness.settle()
    reference = reference_to(queue)
    del queue
    assert is_freed(harness, reference)


async def test_delay_queue_of_a_deleted_exchange_is_freed(harness):
    harness.exchange("later", "x-delayed-message", delayed_type="direct")
    harness.queue("q")
    harness.bind("later", "q", "k")
    harness.publish("later", "k", b"x", headers={"x-delay": 3_600_000})
    await harness.settle()
    (waiting,) = harness.broker.plugin_exchanges.delay_queues.by_exchange.values()
    harness.vhost.delete_exchange("later")
    await harness.settle()
    reference = reference_to(waiting)
    del waiting
    assert is_freed(harness, reference)


async def test_transient_dead_letters_leave_no_must_not_lose_entries(harness):
    harness.queue("dlq", durable=False, max_length=1)
    harness.queue("q", False, max_length=1, dead_letter_exchange="", dead_letter_routing_key="dlq")
    for _ in range(10):
        harness.publish("", "q", b"x", persistent=False)
        await harness.settle()
    assert not harness.broker.store._batch.must_not_lose


async def test_ack_timeouts_do_not_keep_a_deleted_vhost(harness):
    timeouts, vhost = AckTimeouts(), harness.broker.add_vhost("v")
    channel: Any = SimpleNamespace(vhost=vhost, unacked=[None], consumers={})
    timeouts.check([channel], 0.0)
    harness.broker.delete_vhost("v")
    await harness.settle()
    reference = weakref.ref(vhost)
    del vhost, channel
    assert is_freed(harness, reference)


async def test_log_deleted_during_compaction_is_not_compacted(harness, monkeypatch, caplog):
    kinds = {"x-queue-type": "stream", "x-max-age": "1h", "x-cleanup-policy": "compact"}
    for name in ("first", "second"):
        harness.vhost.declare_queue(QueueSpec(name, True, arguments=kinds))
    await harness.settle()
    manager, compact = harness.broker.log_manager, harness.broker.log_manager._compact
    compacted = []

    async def compact_and_delete(queue, now_ms):
        await compact(queue, now_ms)
        compacted.append(queue.name)
        if queue.name == "first":
            harness.vhost.delete_queue("second")
            await harness.settle()
            await harness.until(lambda: not manager._removals)

    monkeypatch.setattr(manager, "_compact", compact_and_delete)
    await manager.clean()
    await harness.settle()
    assert compacted == ["first"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
