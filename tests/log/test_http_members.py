"""Group members over HTTP: assignment, fetch and commit, session timeout."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest

from leveret.broker.logs.http_members import JoinRequest
from leveret.broker.logs.service import LogRecord, NewRecord
from leveret.launch import RunningBroker, in_process_settings
from leveret.model.errors import NotFound, PreconditionFailed
from tests.support.polling import wait_until_async

WITHIN = 60.0


@pytest.fixture
async def running(tmp_path):
    async with RunningBroker(in_process_settings(data_dir=tmp_path / "data")) as running:
        yield running


@pytest.fixture
async def logs(running):
    logs = running.broker.logs
    await logs.create("/", "orders", partitions=3)
    await put(logs, 30)
    return logs


async def put(logs, count):
    await logs.publish("/", "orders", [NewRecord(b"%d" % n, partition=n % 3) for n in range(count)])


def join(logs, **asked):
    return logs.join("/", "orders", "guest", JoinRequest("G", **asked))


def places(records):
    return [(record.partition, record.offset) for record in records]


def committed(logs):
    return [part.committed for part in logs.groups("/", "orders")[0].partitions]


async def fetch_all(logs, member, count):
    records: list[LogRecord] = []
    async with asyncio.timeout(WITHIN):
        while len(records) < count:
            records += await logs.fetch_as(member, count - len(records), wait=5)
    return records


async def test_single_member_reads_and_commits_all_partitions(logs):
    member = join(logs)
    assert member.partitions == [0, 1, 2]
    records = await fetch_all(logs, member, 30)
    assert sorted(places(records)) == [(p, n) for p in range(3) for n in range(10)]
    assert await logs.fetch_as(member) == []
    assert committed(logs) == [0, 0, 0]
    assert await logs.commit_as(member, {0: 10, 1: 4}) == {0: 10, 1: 4, 2: 0}
    logs.leave(member)
    rest = await fetch_all(logs, join(logs), 16)
    assert sorted(places(rest)) == [
        *((1, n) for n in range(4, 10)), *((2, n) for n in range(10))
    ]  # fmt: skip


async def test_members_over_http_and_amqp_share_the_partitions(logs, running):
    polled = [join(logs) for _ in range(2)]
    async with await aio_pika.connect(running.url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        seen = []

        async def note(message):
            seen.append((message.headers["x-partition"], message.headers["x-stream-offset"]))
            await message.ack()

        await (await channel.get_queue("orders")).consume(note, arguments={"x-group": "G"})
        assert [len(member.partitions) for member in polled] == [1, 1]
        positions = [place for m in polled for place in places(await fetch_all(logs, m, 10))]
        await wait_until_async(lambda: len(seen) >= 10)
        assert sorted(positions + seen) == [(p, n) for p in range(3) for n in range(10)]
        for member in polled:
            await logs.commit_as(member, dict.fromkeys(member.partitions, 10))
    await wait_until_async(lambda: sorted(len(m.partitions) for m in polled) == [1, 2])
    await put(logs, 30)
    shares = [(m, 10 * len(m.partitions)) for m in polled]
    positions = [place for m, count in shares for place in places(await fetch_all(logs, m, count))]
    assert sorted(set(positions)) == [(p, n) for p in range(3) for n in range(10, 20)]


async def test_commit_of_a_revoked_partition_is_ignored(logs):
    first = join(logs)
    await fetch_all(logs, first, 30)
    second = join(logs)
    (moved,) = second.partitions
    kept = set(first.partitions)
    assert kept == {0, 1, 2} - {moved}
    assert await logs.commit_as(first, {0: 10, 1: 10, 2: 10}) == dict.fromkeys(sorted(kept), 10)
    assert committed(logs)[moved] == 0
    assert places(await fetch_all(logs, second, 10)) == [(moved, n) for n in range(10)]


async def test_member_is_removed_after_its_session_timeout(logs):
    silent, alive = join(logs, session=1), join(logs, session=60)
    waiting = asyncio.create_task(alive_until(logs, alive, lambda: silent.is_gone))
    await wait_until_async(lambda: silent.is_gone)
    await waiting
    assert alive.partitions == [0, 1, 2]
    with pytest.raises(NotFound, match="its session timed out"):
        logs.member("/", "orders", "G", silent.tag)


async def alive_until(logs, member, condition):
    while not condition():
        await logs.fetch_as(member, wait=0.2)


async def test_prefetch_limits_waiting_records(logs):
    member = join(logs, prefetch=4)
    assert len(await fetch_all(logs, member, 4)) == 4
    assert await logs.fetch_as(member) == []
    share = dict.fromkeys(range(3), 0)
    for partition, fetched in member._fetched.items():
        share[partition] = fetched[-1].id + 1
    await logs.commit_as(member, {p: n for p, n in share.items() if n})
    assert len(await fetch_all(logs, member, 4)) == 4


async def test_waiting_bytes_are_limited(logs):
    await logs.create("/", "big")
    body = bytes(1_000_000)
    await logs.publish("/", "big", [NewRecord(body) for _ in range(12)])
    member = logs.join("/", "big", "guest", JoinRequest("G"))
    seen = 0
    while seen < 12:
        records = await logs.fetch_as(member, 2, wait=WITHIN)
        assert len(member._waiting) < 8
        seen += len(records)
        await logs.commit_as(member, {0: records[-1].offset + 1})


async def test_fetch_waits_for_new_records(logs):
    member = join(logs, start="next")
    waiting = asyncio.create_task(logs.fetch_as(member, 3, wait=WITHIN))
    await asyncio.sleep(0)
    await put(logs, 3)
    assert len(await waiting) >= 1


async def test_invalid_requests_are_rejected(logs, running):
    member = join(logs)
    await fetch_all(logs, member, 30)
    with pytest.raises(PreconditionFailed, match="offset 11 of partition 0 is beyond"):
        await logs.commit_as(member, {0: 11})
    with pytest.raises(PreconditionFailed, match="groups share the partitions"):
        logs.join("/", "orders-0", "guest", JoinRequest("G"))
    with pytest.raises(PreconditionFailed, match="x-stream-offset"):
        join(logs, start="soon")
    with pytest.raises(PreconditionFailed, match="has 1 members"):
        await logs.fetch("/", "orders", "G")
    with pytest.raises(NotFound):
        logs.member("/", "orders", "other", member.tag)


async def test_deleting_the_log_removes_its_members(logs):
    member = join(logs, start="next")
    waiting = asyncio.create_task(logs.fetch_as(member, wait=WITHIN))
    await asyncio.sleep(0)
    logs.delete("/", "orders")
    assert await waiting == []
    assert member.is_gone and member.partitions == []


async def test_http_members_are_listed_with_the_group(logs, running):
    member = join(logs)
    (listed,) = logs.groups("/", "orders")[0].members
    info = listed.consumer
    assert info == member.info()
    assert info.connection_name == f"HTTP API ({member.tag})"
    assert (info.queue, info.vhost, info.user) == ("orders", "/", "guest")
