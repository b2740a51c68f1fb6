"""Segments, retention, compaction, syncs and damage in a running broker."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from urllib.parse import urlsplit

import aio_pika
import aiormq
import pika.exceptions
import pytest

from leveret.broker.logs.service import NewRecord
from leveret.launch import RunningBroker, in_process_settings
from leveret.model.clock import ManualClock
from leveret.model.errors import PreconditionFailed
from leveret.queues.log.files.batch import HEADER_SIZE
from leveret.queues.log.files.checkpoint_file import load_checkpoint
from tests.log.conftest import STREAM, declare, numbered, publish, wait_for
from tests.support import wire
from tests.support.polling import wait_until_async
from tests.support.rawclient import RawClient

HOUR = 3600.0


@pytest.fixture
def clock():
    return ManualClock(int(time.time() * 1000))


@pytest.fixture
async def running(tmp_path, clock):
    settings = in_process_settings(data_dir=tmp_path / "data")
    async with RunningBroker(settings, clock) as running:
        yield running


@pytest.fixture
async def channel_of(running):
    # A clock that jumps would close connections with heartbeats.
    async with await aio_pika.connect(f"{running.url}?heartbeat=0") as connection:
        yield await connection.channel()


async def put(channel, log, records):
    for key, body in records:
        await channel.default_exchange.publish(aio_pika.Message(body, headers={"k": key}), log)


async def declared(channel, name, **arguments):
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return await channel.declare_queue(name, durable=True, arguments={**STREAM, **given})


async def clean(running):
    manager = running.broker.log_manager
    await manager.clean()
    if manager._cleaning is not None:  # the broker may have started it: the clock has moved
        await manager._cleaning
    await running.broker.logs.durable()


def partition(running, name):
    return running.broker.logs.describe("/", name).partitions[0]


def test_max_length_bytes_deletes_old_segments(home, channel, readers):
    declare(channel, "log", max_length_bytes=20_000, stream_max_segment_size_bytes=4_000)
    publish(channel, "", [b"%06d" % n + bytes(994) for n in range(60)], "log")
    part = home.hub.logs.describe("/", "log").partitions[0]
    assert part.next_offset == 60
    assert 0 < part.first_offset < 60
    assert part.bytes <= 20_000 + 5_000
    assert part.first_offset == part.segments[0].base_offset
    left = list(range(part.first_offset, 60))
    assert readers("log", x_stream_offset=0).read(len(left)).offsets == left
    home.restart()
    assert home.hub.logs.describe("/", "log").partitions[0] == replace(part, cut_bytes=0)


async def test_max_age_deletes_old_segments(running, channel_of, clock):
    await declared(channel_of, "log", max_age="1h")
    await put(channel_of, "log", [("", b"old")] * 5)
    clock.advance(0.5 * HOUR)
    await clean(running)
    assert partition(running, "log").first_offset == 0
    await put(channel_of, "log", [("", b"new")])
    clock.advance(0.6 * HOUR)
    await clean(running)
    # The newest record of the only segment is recent.
    assert partition(running, "log").first_offset == 0
    clock.advance(0.6 * HOUR)
    await clean(running)
    part = partition(running, "log")
    assert (part.first_offset, part.next_offset, part.messages) == (6, 6, 0)
    await put(channel_of, "log", [("", b"newest")])
    assert [r.offset for r in await running.broker.logs.read("/", "log")] == [6]


@pytest.fixture
async def compacted(running, channel_of):
    """The example of the feature list: the newest value of each key, offsets unchanged."""
    await declared(
        channel_of,
        "table",
        cleanup_policy="compact",
        stream_max_segment_size_bytes=1,
        delete_retention="1D",
    )
    await channel_of.declare_exchange("keys", "fanout")
    await (await channel_of.get_queue("table")).bind("keys")
    return await channel_of.get_exchange("keys")


async def contents(running):
    records = await running.broker.logs.read("/", "table", offset="first", count=100)
    return [(record.key, record.body, record.offset) for record in records]


async def test_compaction_keeps_the_newest_value_of_each_key(running, compacted):
    for pair in ("k1:v1", "k2:v1", "k1:v2", "k3:v1", "k2:v2", "k1:v3"):
        key, _, value = pair.partition(":")
        await compacted.publish(aio_pika.Message(value.encode()), key)
    await compacted.publish(aio_pika.Message(b"active segment"), "other")
    await clean(running)
    assert (await contents(running))[:3] == [("k3", b"v1", 3), ("k2", b"v2", 4), ("k1", b"v3", 5)]
    assert partition(running, "table").next_offset == 7


async def test_tombstone_deletes_its_key_and_is_deleted_later(running, compacted, clock):
    for key, value in (("k1", b"v1"), ("k2", b"v1"), ("k1", b"")):
        await compacted.publish(aio_pika.Message(value), key)
    await compacted.publish(aio_pika.Message(b"active segment"), "other")
    await clean(running)
    assert (await contents(running))[:2] == [("k2", b"v1", 1), ("k1", b"", 2)]
    clock.advance(25 * HOUR)
    await compacted.publish(aio_pika.Message(b"active segment"), "other")
    await clean(running)
    assert [key for key, _, _ in await contents(running)] == ["k2", "other"]


async def test_consumers_skip_compacted_offsets(running, compacted, channel_of):
    for number in range(20):
        await compacted.publish(aio_pika.Message(b"%d" % number), f"k{number % 2}")
    await clean(running)
    await channel_of.set_qos(prefetch_count=10)
    queue = await channel_of.get_queue("table")
    got = []
    async with queue.iterator(arguments={"x-stream-offset": "first"}) as messages:
        await compacted.publish(aio_pika.Message(b"end"), "end")
        async for message in messages:
            await message.ack()
            got.append(message.body)
            if message.body == b"end":
                break
    assert got[-3:] == [b"18", b"19", b"end"]
    assert len(got) < 20


async def test_default_exchange_cannot_write_to_a_compacted_log(running, compacted, channel_of):
    """Its name would be the key of every record, and compaction would keep only one of them."""
    with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="compacted log"):
        await channel_of.default_exchange.publish(aio_pika.Message(b"lost"), "table")
    assert partition(running, "table").next_offset == 0


@pytest.mark.parametrize("key", ["table", "table-1"])
def test_default_exchange_cannot_write_to_compacted_partitions(channel, connection, key):
    declare(channel, "table", partitions=2, cleanup_policy="compact")
    other = connection.channel()
    other.basic_publish("", key, b"lost")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=f"'{key}'.*compact") as error:
        other.queue_declare("table", passive=True)
    assert error.value.reply_code == 406
    assert "exchange 'table'" in error.value.reply_text
    publish(channel, "table", [b"kept"], "key")


def test_copies_by_cc_cannot_be_written_to_a_compacted_log(channel, connection):
    declare(channel, "table", cleanup_policy="compact")
    channel.queue_declare("work")
    other = connection.channel()
    other.tx_select()
    other.basic_publish("", "work", b"x", pika.BasicProperties(headers={"CC": ["table"]}))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="compacted log"):
        other.tx_commit()
    assert channel.queue_declare("work", passive=True).method.message_count == 0


async def test_management_cannot_write_keyless_records_to_a_compacted_log(running, compacted):
    logs = running.broker.logs
    with pytest.raises(PreconditionFailed, match="'table' is the name of the log"):
        await logs.publish("/", "table", [NewRecord(b"lost", "table")])
    assert await logs.publish("/", "table", [NewRecord(b"kept", "key"), NewRecord(b"kept")]) == 2


async def test_dead_letters_for_a_compacted_log_are_all_kept(running, compacted, channel_of):
    """Nobody can be told about an error, so they are records without a key."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "table"}
    queue = await channel_of.declare_queue("work", arguments=arguments)
    for number in range(5):
        await channel_of.default_exchange.publish(aio_pika.Message(b"%d" % number), "work")
        await (await queue.get()).reject()
    await wait_until_async(lambda: partition(running, "table").next_offset == 5)
    await compacted.publish(aio_pika.Message(b"active segment"), "other")
    await clean(running)
    assert [body for _, body, _ in await contents(running)][:5] == [b"%d" % n for n in range(5)]


async def test_name_of_the_log_is_a_key_like_any_other_behind_an_exchange(running, compacted):
    for number in range(3):
        await compacted.publish(aio_pika.Message(b"%d" % number), "table")
    await compacted.publish(aio_pika.Message(b"active segment"), "other")
    await clean(running)
    assert (await contents(running))[0] == ("table", b"2", 2)


async def test_name_of_a_partitioned_log_as_a_key_stays_in_one_partition(running):
    logs = running.broker.logs
    await logs.create("/", "table", partitions=3, cleanup_policy="compact")
    await logs.publish("/", "table", [NewRecord(b"%d" % n, "table") for n in range(6)])
    sizes = [part.messages for part in logs.describe("/", "table").partitions]
    assert sorted(sizes) == [0, 0, 6]


def test_many_records_share_a_commit(home, channel):
    """Publishing in bulk takes far fewer commits than records."""
    declare(channel, "log")
    commits = home.hub.store.committed
    address = urlsplit(home.url)
    with RawClient(str(address.hostname), int(address.port or 0)) as fast:
        fast.handshake().channel()
        head = wire.publish(1, "", "log")
        fast.send_bytes(
            b"".join(
                head + wire.content_header(1, len(body)) + wire.body(1, body)
                for body in numbered(2_000)
            )
        )
    wait_for(lambda: home.hub.logs.describe("/", "log").messages == 2_000)
    assert home.hub.store.committed - commits < 400


async def test_cost_of_a_read_does_not_depend_on_the_log_length(running):
    """Reading the end of a long log reads no more bytes than that of a short one."""
    logs, costs = running.broker.logs, []
    for name, count in (("short", 500), ("long", 10_000)):
        await logs.create("/", name, segment_bytes=200_000)
        for start in range(0, count, 50):
            await logs.publish(
                "/", name, [NewRecord(b"%0100d" % n) for n in range(start, start + 50)]
            )
        view = running.broker.vhosts["/"].queues[name].partition.view
        before = view.bytes_read
        records = await logs.read("/", name, offset=count - 200, count=200)
        assert [int(record.body) for record in records] == list(range(count - 200, count))
        costs.append(view.bytes_read - before)
    assert len(partition(running, "long").segments) > 5
    assert costs[1] < costs[0] + 100_000  # at most an index interval more


def counted_syncs(monkeypatch):
    synced = []
    real = os.fdatasync

    def counted(fd):
        synced.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", counted)
    return synced


def on_disk(directory):
    checkpoint = load_checkpoint(directory)
    return checkpoint.next_offset if checkpoint is not None else None


def test_sync_interval_delays_the_sync(home, channel, monkeypatch):
    """With `x-sync-interval` confirms do not wait for the sync, which follows later."""
    declare(channel, "later", sync_interval=60_000)
    synced = counted_syncs(monkeypatch)
    publish(channel, "", numbered(50), "later")
    assert len(synced) < 10
    assert home.hub.logs.describe("/", "later").messages == 50
    declare(channel, "soon", sync_interval=400)
    publish(channel, "", numbered(50), "soon")
    directory = home.hub.vhosts["/"].queues["soon"].partition.directory
    wait_for(lambda: on_disk(directory) == 50)


def test_confirmed_records_are_synced_by_default(home, channel, monkeypatch):
    declare(channel, "log")
    synced = counted_syncs(monkeypatch)
    publish(channel, "", numbered(20), "log")
    assert len(synced) >= 20
    directory = home.hub.vhosts["/"].queues["log"].partition.directory
    assert on_disk(directory) == 20


def test_damaged_batch_is_reported_and_skipped(home, channel, readers):
    declare(channel, "log", stream_max_segment_size_bytes=1)
    publish(channel, "", numbered(6), "log")
    directory = home.hub.vhosts["/"].queues["log"].partition.directory
    home.stop()
    segments = sorted(directory.glob("*.log"))
    with open(segments[2], "r+b") as file:
        file.seek(HEADER_SIZE + 40)
        byte = file.read(1)[0]
        file.seek(HEADER_SIZE + 40)
        file.write(bytes([byte ^ 1]))
    home.start()
    reader = readers("log", x_stream_offset="first").read(5)
    assert reader.offsets == [0, 1, 3, 4, 5]
    (damage,) = home.hub.logs.describe("/", "log").partitions[0].damage
    assert (damage.segment, damage.first_offset) == (2, 2)


def test_torn_tail_is_cut_and_the_log_continues(home, channel, readers):
    declare(channel, "log")
    publish(channel, "", numbered(5), "log")
    directory = home.hub.vhosts["/"].queues["log"].partition.directory
    home.stop()
    (segment,) = directory.glob("*.log")
    with open(segment, "ab") as file:
        file.write(b"LVB1 torn")
    (directory / "committed").unlink()
    home.start()
    assert home.hub.logs.describe("/", "log").partitions[0].cut_bytes == 9
    again = home.connect().channel()
    again.confirm_delivery()
    publish(again, "", [b"5"], "log")
    assert readers("log", x_stream_offset="first").read(6).bodies == numbered(6)


def test_unknown_directory_is_kept(home, channel):
    declare(channel, "log")
    unknown = home.data_dir / "logs" / "2"
    unknown.mkdir()
    (unknown / "keep").write_text("me")
    declare(channel, "next")
    home.restart()
    kept = list((home.data_dir / "logs").glob("2.found-*/keep"))
    assert [path.read_text() for path in kept] == ["me"]
