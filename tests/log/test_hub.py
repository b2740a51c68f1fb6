"""Logs as management handles them: the methods the HTTP API and the command line stand on."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest

from leveret.broker.logs import NewRecord
from leveret.launch import RunningBroker, in_process_settings
from leveret.model.errors import NotFound, PreconditionFailed
from queues import LogQueue


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
    assert logs.create("/", "one", max_age="7D", max_length_bytes=10_000_000)
    assert logs.create("/", "three", partitions=3, cleanup_policy="compact")
    assert not logs.create("/", "three", partitions=3, cleanup_policy="compact")
    assert [log["name"] for log in logs.list("/")] == ["one", "three"]
    one, three = logs.describe("/", "one"), logs.describe("/", "three")
    assert (one["partitioned"], one["max_age_ms"]) == (False, 7 * 86_400_000)
    assert (one["max_length_bytes"], one["cleanup_policy"]) == (10_000_000, "delete")
    assert [part["queue"] for part in three["partitions"]] == ["three-0", "three-1", "three-2"]
    assert three["cleanup_policy"] == "compact"
    for name in ("one", "three"):
        logs.delete("/", name)
    assert logs.list("/") == []
    for call in (logs.describe, logs.delete, logs.groups):
        with pytest.raises(NotFound, match="no log 'one'"):
            call("/", "one")


async def test_other_queues_are_no_logs(logs, running):
    async with await aio_pika.connect(running.url) as connection:
        await (await connection.channel()).declare_queue("classic", durable=True)
    assert logs.list("/") == []
    with pytest.raises(NotFound):
        logs.describe("/", "classic")
    with pytest.raises(NotFound):
        logs.list("nowhere")


async def test_publish_and_read(logs):
    logs.create("/", "log")
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
    logs.create("/", "log")
    waiting = asyncio.create_task(logs.read("/", "log", offset="next", wait=10))
    await asyncio.sleep(0)
    await logs.publish("/", "log", records(":now"))
    assert [record.body for record in await waiting] == [b"now"]
    assert await logs.read("/", "log", offset="next", wait=0.01) == []


async def test_publish_to_partitions(logs):
    logs.create("/", "three", partitions=3)
    await logs.publish("/", "three", [NewRecord(b"x", partition=2), *records("k:1", "k:2")])
    found = [len(await logs.read("/", "three", partition=n)) for n in range(3)]
    assert sum(found) == 3 and found[2] >= 1
    with pytest.raises(PreconditionFailed):
        await logs.publish("/", "three", [NewRecord(b"x", partition=3)])


async def test_a_group_by_hand(logs):
    logs.create("/", "three", partitions=3)
    await logs.publish("/", "three", records(*[f"k{n}:{n}" for n in range(30)]))
    seen = []
    while found := await logs.fetch("/", "three", "hand", count=7):
        seen += [record.body for record in found]
        offsets = {record.partition: record.offset + 1 for record in found}
        await logs.commit("/", "three", "hand", offsets)
    assert sorted(map(int, seen)) == list(range(30))
    (group,) = logs.groups("/", "three")
    assert (group["group"], group["lag"], group["members"]) == ("hand", 0, [])
    assert [part["committed"] == part["end"] for part in group["partitions"]] == [True] * 3
    with pytest.raises(PreconditionFailed, match="which ends at"):
        await logs.commit("/", "three", "hand", {0: 1000})
    waiting = asyncio.create_task(logs.fetch("/", "three", "hand", wait=10))
    await asyncio.sleep(0)
    await logs.publish("/", "three", records("k:late"))
    assert [record.body for record in await waiting] == [b"late"]
    logs.delete_group("/", "three", "hand")
    assert logs.groups("/", "three") == []


async def test_reset_previews_and_moves(logs):
    logs.create("/", "log")
    await logs.publish("/", "log", records(*[f":{n}" for n in range(10)]))
    await logs.commit("/", "log", "g", {0: 6})
    assert logs.reset("/", "log", "g", "first", dry_run=True) == [(0, 6, 0)]
    assert logs.groups("/", "log")[0]["partitions"][0]["committed"] == 6
    assert logs.reset("/", "log", "g", 3) == [(0, 6, 3)]
    assert logs.groups("/", "log")[0]["lag"] == 7
    assert logs.reset("/", "log", "g", "next") == [(0, 3, 10)]
    assert logs.reset("/", "log", "g", "1h", partition=0) == [(0, 10, 0)]
    with pytest.raises(NotFound, match="no group 'h'"):
        logs.reset("/", "log", "h", 0)
    with pytest.raises(NotFound, match="no partition 1"):
        logs.reset("/", "log", "g", 0, partition=1)


async def test_a_group_with_members_is_not_read_by_hand(logs, running):
    logs.create("/", "log")
    async with await aio_pika.connect(running.url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)
        queue = await channel.get_queue("log")
        await queue.consume(_ignore, arguments={"x-group": "g"}, consumer_tag="me")
        (group,) = logs.groups("/", "log")
        (member,) = group["members"]
        assert member["consumer_tag"] == "me" and member["partitions"] == [0]
        assert "->" in member["connection"]
        with pytest.raises(PreconditionFailed, match="1 members"):
            await logs.fetch("/", "log", "g")
        with pytest.raises(PreconditionFailed, match="has members"):
            logs.delete_group("/", "log", "g")


async def test_tracking_names_groups_and_producers(logs):
    logs.create("/", "two", partitions=2)
    headers = {"x-producer-id": "p", "x-producer-seq": 7}
    await logs.publish("/", "two", [NewRecord(b"x", "", 1, {"headers": headers})])
    await logs.commit("/", "two", "g", {1: 1})
    assert logs.tracking("/", "two-1") == {"offsets": {"g": 1}, "writers": {"p": 7}}
    assert logs.tracking("/", "two-0") == {"offsets": {"g": None}, "writers": {}}


async def test_logs_without_a_disk(tmp_path):
    async with RunningBroker(in_process_settings()) as running:
        logs = running.broker.logs
        logs.create("/", "log")
        await logs.publish("/", "log", records(":x"))
        assert [record.body for record in await logs.read("/", "log")] == [b"x"]
        queue = running.broker.vhosts["/"].queues["log"]
        assert isinstance(queue, LogQueue)
        directory = queue.partition.directory
        assert directory.is_dir()
    assert not directory.exists()


async def test_a_virtual_host_takes_its_logs_along(tmp_path):
    settings = in_process_settings(data_dir=tmp_path / "data")
    async with RunningBroker(settings) as running:
        hub = running.broker
        hub.add_vhost("tenant")
        hub.logs.create("tenant", "plain")
        hub.logs.create("tenant", "three", partitions=3)
        hub.logs.create("/", "stays")
        await hub.logs.publish("tenant", "three", records("k:v"))
        await hub.logs.commit("tenant", "three", "g", {0: 0})
        hub.delete_vhost("tenant")
        await hub.logs.durable()
    async with RunningBroker(settings) as running:
        assert [log["name"] for log in running.broker.logs.list("/")] == ["stays"]
        assert "tenant" not in running.broker.vhosts
    assert len(list((tmp_path / "data" / "logs").iterdir())) == 1
