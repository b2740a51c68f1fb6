"""The log service: the methods behind the HTTP API and the command line."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest

from leveret.broker.logs.service import NewRecord, OffsetMove, StreamTracking
from leveret.launch import RunningBroker, in_process_settings
from leveret.model.errors import NotFound, PreconditionFailed
from leveret.queues.log.log_queue import LogQueue


@pytest.fixture
async def running(tmp_path):
    async with RunningBroker(in_process_settings(data_dir=tmp_path / "data")) as running:
        yield running


@pytest.fixture
def logs(running):
    return running.broker.logs


async def _ignore(message):
    return None


def records(*pairs):
    return [NewRecord(body.encode(), key) for key, _, body in (p.partition(":") for p in pairs)]


async def test_create_list_describe_delete(logs):
    assert await logs.create("/", "one", max_age="7D", max_length_bytes=10_000_000)
    assert await logs.create("/", "three", partitions=3, cleanup_policy="compact")
    assert not await logs.create("/", "three", partitions=3, cleanup_policy="compact")
    assert [log.name for log in logs.list("/")] == ["one", "three"]
    plain, three = logs.describe("/", "one"), logs.describe("/", "three")
    assert (plain.is_partitioned, plain.retention.max_age_ms) == (False, 7 * 86_400_000)
    assert (plain.retention.max_bytes, plain.is_compacted) == (10_000_000, False)
    assert [part.queue for part in three.partitions] == ["three-0", "three-1", "three-2"]
    assert three.is_compacted
    for name in ("one", "three"):
        logs.delete("/", name)
    assert logs.list("/") == []
    for call in (logs.describe, logs.delete, logs.groups):
        with pytest.raises(NotFound, match="no log 'one'"):
            call("/", "one")


async def test_classic_queues_are_not_listed(logs, running):
    async with await aio_pika.connect(running.url) as connection:
        await (await connection.channel()).declare_queue("classic", durable=True)
    assert logs.list("/") == []
    with pytest.raises(NotFound):
        logs.describe("/", "classic")
    with pytest.raises(NotFound):
        logs.list("nowhere")


async def test_publish_and_read(logs):
    await logs.create("/", "log")
    properties = {"content_type": "text/plain", "headers": {"a": 1}}
    sent = [*records("k:v"), NewRecord(b"\x00\xff", properties=properties)]
    assert await logs.publish("/", "log", sent) == 2
    first, second = await logs.read("/", "log")
    assert (first.partition, first.offset, first.key, first.body) == (0, 0, "k", b"v")
    assert (second.offset, second.key, second.body) == (1, "", b"\x00\xff")
    assert second.properties == properties
    assert [r.offset for r in await logs.read("/", "log", offset=1)] == [1]
    assert [r.offset for r in await logs.read("/", "log", offset="last")] == [1]
    assert await logs.read("/", "log", offset="next") == []
    assert len(await logs.read("/", "log", count=1)) == 1
    with pytest.raises(NotFound, match="no partition 1"):
        await logs.read("/", "log", partition=1)
    with pytest.raises(PreconditionFailed, match="x-stream-offset"):
        await logs.read("/", "log", offset="somewhere")


async def test_reading_waits_for_the_next_record(logs):
    await logs.create("/", "log")
    waiting = asyncio.create_task(logs.read("/", "log", offset="next", wait=10))
    await asyncio.sleep(0)
    await logs.publish("/", "log", records(":now"))
    assert [record.body for record in await waiting] == [b"now"]
    assert await logs.read("/", "log", offset="next", wait=0.01) == []


async def test_publish_to_partitions(logs):
    await logs.create("/", "three", partitions=3)
    await logs.publish("/", "three", [NewRecord(b"x", partition=2), *records("k:1", "k:2")])
    counts = [len(await logs.read("/", "three", partition=n)) for n in range(3)]
    assert sum(counts) == 3 and counts[2] >= 1
    with pytest.raises(PreconditionFailed):
        await logs.publish("/", "three", [NewRecord(b"x", partition=3)])


async def test_fetch_and_commit_without_members(logs):
    await logs.create("/", "three", partitions=3)
    await logs.publish("/", "three", records(*[f"k{n}:{n}" for n in range(30)]))
    seen = []
    while fetched := await logs.fetch("/", "three", "hand", count=7):
        seen += [record.body for record in fetched]
        offsets = {record.partition: record.offset + 1 for record in fetched}
        await logs.commit("/", "three", "hand", offsets)
    assert sorted(map(int, seen)) == list(range(30))
    (group,) = logs.groups("/", "three")
    assert (group.name, group.lag, group.members) == ("hand", 0, [])
    assert [part.committed == part.next_offset for part in group.partitions] == [True] * 3
    with pytest.raises(PreconditionFailed, match="which ends at"):
        await logs.commit("/", "three", "hand", {0: 1000})
    waiting = asyncio.create_task(logs.fetch("/", "three", "hand", wait=10))
    await asyncio.sleep(0)
    await logs.publish("/", "three", records("k:late"))
    assert [record.body for record in await waiting] == [b"late"]
    logs.delete_group("/", "three", "hand")
    assert logs.groups("/", "three") == []


async def test_reset_previews_and_moves(logs):
    await logs.create("/", "log")
    await logs.publish("/", "log", records(*[f":{n}" for n in range(10)]))
    await logs.commit("/", "log", "g", {0: 6})
    assert logs.reset("/", "log", "g", "first", dry_run=True) == [OffsetMove(0, 6, 0)]
    assert logs.groups("/", "log")[0].partitions[0].committed == 6
    assert logs.reset("/", "log", "g", 3) == [OffsetMove(0, 6, 3)]
    assert logs.groups("/", "log")[0].lag == 7
    assert logs.reset("/", "log", "g", "next") == [OffsetMove(0, 3, 10)]
    assert logs.reset("/", "log", "g", "1h", partition=0) == [OffsetMove(0, 10, 0)]
    with pytest.raises(NotFound, match="no group 'h'"):
        logs.reset("/", "log", "h", 0)
    with pytest.raises(NotFound, match="no partition 1"):
        logs.reset("/", "log", "g", 0, partition=1)


async def test_fetch_is_rejected_while_the_group_has_members(logs, running):
    await logs.create("/", "log")
    async with await aio_pika.connect(running.url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)
        queue = await channel.get_queue("log")
        await queue.consume(_ignore, arguments={"x-group": "g"}, consumer_tag="me")
        (group,) = logs.groups("/", "log")
        (member,) = group.members
        assert member.consumer.consumer_tag == "me" and member.partitions == [0]
        assert "->" in member.consumer.connection_name
        with pytest.raises(PreconditionFailed, match="1 members"):
            await logs.fetch("/", "log", "g")
        with pytest.raises(PreconditionFailed, match="has members"):
            logs.delete_group("/", "log", "g")


async def test_tracking_names_groups_and_producers(logs):
    await logs.create("/", "two", partitions=2)
    headers = {"x-producer-id": "p", "x-producer-seq": 7}
    await logs.publish("/", "two", [NewRecord(b"x", "", 1, {"headers": headers})])
    await logs.commit("/", "two", "g", {1: 1})
    assert logs.tracking("/", "two-1") == StreamTracking({"g": 1}, {"p": 7})
    assert logs.tracking("/", "two-0") == StreamTracking({"g": None}, {})


async def test_logs_in_memory_mode(tmp_path):
    async with RunningBroker(in_process_settings()) as running:
        logs = running.broker.logs
        await logs.create("/", "log")
        await logs.publish("/", "log", records(":x"))
        assert [record.body for record in await logs.read("/", "log")] == [b"x"]
        queue = running.broker.vhosts["/"].queues["log"]
        assert isinstance(queue, LogQueue)
        directory = queue.partition.directory
        assert directory.is_dir()
    assert not directory.exists()


async def test_deleting_a_vhost_deletes_its_logs(tmp_path):
    settings = in_process_settings(data_dir=tmp_path / "data")
    async with RunningBroker(settings) as running:
        hub = running.broker
        hub.add_vhost("tenant")
        await hub.logs.create("tenant", "plain")
        await hub.logs.create("tenant", "three", partitions=3)
        await hub.logs.create("/", "stays")
        await hub.logs.publish("tenant", "three", records("k:v"))
        await hub.logs.commit("tenant", "three", "g", {0: 0})
        hub.delete_vhost("tenant")
        await hub.logs.durable()
    async with RunningBroker(settings) as running:
        assert [log.name for log in running.broker.logs.list("/")] == ["stays"]
        assert "tenant" not in running.broker.vhosts
    assert len(list((tmp_path / "data" / "logs").iterdir())) == 1
