"""Policies on logs: limits apply to existing records, and end with the policy."""

from __future__ import annotations

import time

import aio_pika
import pytest

from leveret.broker.policies.policies import Policy
from leveret.launch import RunningBroker, in_process_settings
from leveret.model.clock import ManualClock
from leveret.model.errors import PreconditionFailed
from tests.log.conftest import STREAM

HOUR = 3600.0


@pytest.fixture
def clock():
    return ManualClock(int(time.time() * 1000))


@pytest.fixture
async def running(tmp_path, clock):
    async with RunningBroker(in_process_settings(data_dir=tmp_path / "data"), clock) as running:
        yield running


@pytest.fixture
async def channel(running):
    # A clock that jumps would close connections with heartbeats.
    async with await aio_pika.connect(f"{running.url}?heartbeat=0") as connection:
        yield await connection.channel()


def apply_policy(running, pattern="^log$", apply_to="streams", operator=False, **definition):
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    running.broker.policies.put(
        Policy("/", f"{pattern} {operator}", pattern, named, apply_to, 0, operator)
    )


def delete_policies(running):
    for policy in running.broker.policies:
        running.broker.policies.delete(policy)


async def make(channel, name="log", **arguments):
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    await channel.declare_queue(name, durable=True, arguments={**STREAM, **given})


async def put(channel, count, name="log", exchange=None):
    to = channel.default_exchange if exchange is None else await channel.get_exchange(exchange)
    for number in range(count):
        await to.publish(aio_pika.Message(b"%04d" % number + bytes(996)), name)


async def first(running, name="log"):
    await running.broker.logs.durable()
    return running.broker.logs.describe("/", name).partitions[0].first_offset


def segments(running, name="log"):
    return len(running.broker.logs.describe("/", name).partitions[0].segments)


async def test_max_length_bytes_policy_applies_at_once_and_to_later_records(running, channel):
    await make(channel, stream_max_segment_size_bytes=4_000)
    await put(channel, 30)
    assert await first(running) == 0
    apply_policy(running, max_length_bytes=10_000)
    dropped = await first(running)
    assert 15 < dropped < 30
    await put(channel, 10)
    assert await first(running) > dropped
    assert running.broker.logs.describe("/", "log").retention.max_bytes == 10_000
    delete_policies(running)
    kept = await first(running)
    await put(channel, 30)
    assert await first(running) == kept


async def test_max_age_policy_deletes_existing_old_records(running, channel, clock):
    await make(channel)
    await put(channel, 3)
    clock.advance(2 * HOUR)
    apply_policy(running, max_age="3h")
    assert await first(running) == 0
    apply_policy(running, max_age="1h")
    assert await first(running) == 3
    assert running.broker.logs.describe("/", "log").retention.max_age_ms == HOUR * 1000


async def test_segment_size_policy_applies_from_the_next_segment(running, channel):
    await make(channel)
    await put(channel, 6)
    assert segments(running) == 1
    apply_policy(running, stream_max_segment_size_bytes=2_000)
    await put(channel, 6)
    assert segments(running) > 3
    delete_policies(running)
    before = segments(running)
    await put(channel, 6)
    assert segments(running) == before


async def test_declared_segment_size_overrides_the_policy(running, channel):
    await make(channel, stream_max_segment_size_bytes=1_000_000)
    apply_policy(running, stream_max_segment_size_bytes=1_000)
    await put(channel, 6)
    assert segments(running) == 1


@pytest.mark.parametrize(("argument", "policy", "holds"), [(9, 5, 5), (5, 9, 5), (5, None, 5)])
async def test_smaller_of_argument_and_policy_applies(running, channel, argument, policy, holds):
    await make(channel, max_length_bytes=argument * 1000, max_age=f"{argument}h")
    if policy is not None:
        apply_policy(running, max_length_bytes=policy * 1000, max_age=f"{policy}h")
    log = running.broker.logs.describe("/", "log")
    limits = (log.retention.max_bytes, log.retention.max_age_ms)
    assert limits == (holds * 1000, holds * HOUR * 1000)


async def test_operator_policy_lowers_the_limit(running, channel):
    await make(channel)
    apply_policy(running, max_length_bytes=9_000)
    apply_policy(running, operator=True, max_length_bytes=4_000)
    assert running.broker.logs.describe("/", "log").retention.max_bytes == 4_000


@pytest.mark.parametrize("pattern", ["^orders$", "^orders", "^orders-"])
async def test_policy_of_a_log_applies_to_its_partitions(running, channel, pattern):
    await make(channel, "before-orders", partitions=2)
    apply_policy(
        running, pattern=pattern, max_length_bytes=5_000, stream_max_segment_size_bytes=2_000
    )
    await make(channel, "orders", partitions=2)
    await put(channel, 20, "key", exchange="orders")
    await running.broker.logs.durable()
    log = running.broker.logs.describe("/", "orders")
    assert log.retention.max_bytes == 5_000
    assert max(part.first_offset for part in log.partitions) > 10
    assert running.broker.logs.describe("/", "before-orders").retention.max_bytes is None


async def test_policy_for_classic_queues_does_not_apply_to_logs(running, channel):
    await make(channel)
    apply_policy(running, apply_to="classic_queues", max_length_bytes=1)
    assert running.broker.logs.describe("/", "log").retention.max_bytes is None


async def test_policy_applies_after_a_restart(tmp_path):
    settings = in_process_settings(data_dir=tmp_path / "data")
    async with RunningBroker(settings) as running:
        async with await aio_pika.connect(running.url) as connection:
            await make(await connection.channel())
        apply_policy(running, max_length_bytes=7_000, max_age="7D")
        await running.broker.logs.durable()
    async with RunningBroker(settings) as running:
        log = running.broker.logs.describe("/", "log")
        assert (log.retention.max_bytes, log.retention.max_age_ms) == (7_000, 7 * 24 * HOUR * 1000)


@pytest.mark.parametrize("age", ["0h", "1x", "h", "1 h", "9999999999999s", 5])
async def test_invalid_max_age_policy_is_rejected(running, age):
    with pytest.raises(PreconditionFailed, match="must be a positive number with a unit"):
        apply_policy(running, max_age=age)
