"""Members over HTTP: they share partitions with everybody else, and live while they ask."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest

from leveret.broker.log_members import Joining
from leveret.broker.logs import LogRecord, NewRecord
from leveret.launch import RunningBroker, in_process_settings
from leveret.model.errors import NotFound, PreconditionFailed

WITHIN = 60.0


@pytest.fixture
async def running(tmp_path):
    async with RunningBroker(in_process_settings(data_dir=tmp_path / "data")) as running:
        yield running


@pytest.fixture
async def logs(running):
    logs = running.broker.logs
    logs.create("/", "orders", partitions=3)
    await put(logs, 30)
    return logs


async def put(logs, count):
    await logs.publish("/", "orders", [NewRecord(b"%d" % n, partition=n % 3) for n in range(count)])


def join(logs, **asked):
    return logs.join("/", "orders", "guest", Joining("G", **asked))


def places(records):
    return [(record.partition, record.offset) for record in records]


def committed(logs):
    return [part["committed"] for part in logs.groups("/", "orders")[0]["partitions"]]


async def until(condition):
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def fetch_all(logs, member, count):
    found: list[LogRecord] = []
    async with asyncio.timeout(WITHIN):
        while len(found) < count:
            found += await logs.fetch_as(member, count - len(found), wait=5)
    return found


async def test_a_lone_member_has_everything_and_commits_it(logs):
    member = join(logs)
    assert member.partitions == [0, 1, 2]
    found = await fetch_all(logs, member, 30)
    assert sorted(places(found)) == [(p, n) for p in range(3) for n in range(10)]
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
        found = [place for m in polled for place in places(await fetch_all(logs, m, 10))]
        await until(lambda: len(seen) >= 10)
        assert sorted(found + seen) == [(p, n) for p in range(3) for n in range(10)]
        for member in polled:
            await logs.commit_as(member, dict.fromkeys(member.partitions, 10))
    await until(lambda: sorted(len(m.partitions) for m in polled) == [1, 2])
    await put(logs, 30)
    shares = [(m, 10 * len(m.partitions)) for m in polled]
    found = [place for m, count in shares for place in places(await fetch_all(logs, m, count))]
    assert sorted(set(found)) == [(p, n) for p in range(3) for n in range(10, 20)]


async def test_what_moved_to_another_member_is_not_committed(logs):
    first = join(logs)
    await fetch_all(logs, first, 30)
    second = join(logs)
    (moved,) = second.partitions
    kept = set(first.partitions)
    assert kept == {0, 1, 2} - {moved}
    assert await logs.commit_as(first, {0: 10, 1: 10, 2: 10}) == dict.fromkeys(sorted(kept), 10)
    assert committed(logs)[moved] == 0
    assert places(await fetch_all(logs, second, 10)) == [(moved, n) for n in range(10)]


async def test_a_silent_member_is_taken_for_dead(logs):
    silent, alive = join(logs, session=1), join(logs, session=60)
    waiting = asyncio.create_task(alive_until(logs, alive, lambda: silent.is_gone))
    await until(lambda: silent.is_gone)
    await waiting
    assert alive.partitions == [0, 1, 2]
    with pytest.raises(NotFound, match="was silent for too long"):
        logs.member("/", "orders", "G", silent.tag)


async def alive_until(logs, member, condition):
    while not condition():
        await logs.fetch_as(member, wait=0.2)


async def test_no_more_than_its_prefetch_is_held(logs):
    member = join(logs, prefetch=4)
    assert len(await fetch_all(logs, member, 4)) == 4
    assert await logs.fetch_as(member) == []
    share = dict.fromkeys(range(3), 0)
    for partition, fetched in member._fetched.items():
        share[partition] = fetched[-1].id + 1
    await logs.commit_as(member, {p: n for p, n in share.items() if n})
    assert len(await fetch_all(logs, member, 4)) == 4


async def test_big_records_wait_in_the_log(logs):
    logs.create("/", "big")
    body = bytes(1_000_000)
    await logs.publish("/", "big", [NewRecord(body) for _ in range(12)])
    member = logs.join("/", "big", "guest", Joining("G"))
    seen = 0
    while seen < 12:
        found = await logs.fetch_as(member, 2, wait=WITHIN)
        assert len(member._waiting) < 8
        seen += len(found)
        await logs.commit_as(member, {0: found[-1].offset + 1})


async def test_a_fetch_waits_for_what_comes(logs):
    member = join(logs, start="next")
    waiting = asyncio.create_task(logs.fetch_as(member, 3, wait=WITHIN))
    await asyncio.sleep(0)
    await put(logs, 3)
    assert len(await waiting) >= 1


async def test_refusals(logs, running):
    member = join(logs)
    await fetch_all(logs, member, 30)
    with pytest.raises(PreconditionFailed, match="offset 11 of partition 0 is beyond"):
        await logs.commit_as(member, {0: 11})
    with pytest.raises(PreconditionFailed, match="groups share the partitions"):
        logs.join("/", "orders-0", "guest", Joining("G"))
    with pytest.raises(PreconditionFailed, match="x-stream-offset"):
        join(logs, start="soon")
    with pytest.raises(PreconditionFailed, match="has 1 members"):
        await logs.fetch("/", "orders", "G")
    with pytest.raises(NotFound):
        logs.member("/", "orders", "other", member.tag)


async def test_a_deleted_log_ends_its_members(logs):
    member = join(logs, start="next")
    waiting = asyncio.create_task(logs.fetch_as(member, wait=WITHIN))
    await asyncio.sleep(0)
    logs.delete("/", "orders")
    assert await waiting == []
    assert member.is_gone and member.partitions == []


async def test_members_are_shown_beside_the_others(logs, running):
    member = join(logs)
    (row,) = logs.groups("/", "orders")[0]["members"]
    assert row["consumer_tag"] == member.tag
    assert row["connection"] == f"HTTP API ({member.tag})"
    shown = member.describe()
    assert shown["queue"] == {"name": "orders", "vhost": "/"}
    assert shown["channel_details"]["user"] == "guest"
