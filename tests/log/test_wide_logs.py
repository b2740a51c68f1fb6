"""Logs of many partitions: their files are created before anything is declared.

Only the declaring channel waits for that. Everybody else sees the whole log or nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from leveret.launch import RunningBroker, in_process_settings
from leveret.model.errors import BrokerError, NotFound, PreconditionFailed
from leveret.queues.log.files import Partition
from leveret.queues.spec import QueueSpec
from tests.log.conftest import STREAM, WITHIN, declare, publish, wait_for
from tests.log.test_creation import directories, log_named

COUNT = 40
WIDE = {**STREAM, "x-partitions": COUNT}


class Creation:
    """The creation of partitions: it waits before number `COUNT - 1` until it may go on."""

    def __init__(self) -> None:
        self.created = 0
        self.is_waiting = threading.Event()
        self.may_end = threading.Event()
        self.error: int | None = None

    def before(self) -> None:
        self.created += 1
        if self.created == COUNT - 1:
            self.is_waiting.set()
            assert self.may_end.wait(WITHIN)
            if self.error is not None:
                raise OSError(self.error, os.strerror(self.error))


@pytest.fixture
def creation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Creation]:
    creation, real = Creation(), Partition.create_files

    def create_files(partition: Partition) -> None:
        creation.before()
        real(partition)

    monkeypatch.setattr(Partition, "create_files", create_files)
    yield creation
    creation.may_end.set()


def begin(channel, creation, arguments=WIDE):
    """Send a declaration, and wait until most of the files exist."""
    channel._impl.queue_declare("wide", durable=True, arguments=arguments, callback=None)
    channel.connection.process_data_events(0)
    assert creation.is_waiting.wait(WITHIN)


def finished(channel):
    """Answered after the declaration."""
    return channel.queue_declare("wide", passive=True)


def wide_names(home):
    vhost = home.hub.vhosts["/"]
    return [name for name in (*vhost.queues, *vhost.exchanges) if name.startswith("wide")]


def test_others_are_confirmed_while_files_are_created(home, channel, creation):
    declaring = home.connect().channel()
    channel.queue_declare("work", durable=True)
    begin(declaring, creation)
    publish(channel, "", [b"1", b"2"], "work")
    channel.queue_declare("more", durable=True)
    assert len(directories(home)) == COUNT - 2
    assert wide_names(home) == []
    creation.may_end.set()
    finished(declaring)
    assert len(wide_names(home)) == COUNT + 2
    assert len(directories(home)) == COUNT


def test_wide_log_is_complete_after_a_restart(home, channel, readers):
    declare(channel, "wide", partitions=COUNT)
    for number in range(COUNT):
        publish(channel, "wide", [b"%d" % number], x_partition=number)
    home.restart()
    log = log_named(home, "wide")
    assert [partition.next_offset for partition in log.partitions] == [1] * COUNT
    reader = readers("wide", x_stream_offset="first").read(COUNT)
    assert sorted(reader.places) == [(number, 0) for number in range(COUNT)]
    assert {int(body) for body in reader.bodies} == set(range(COUNT))


def test_publish_and_delete_find_no_log_before_it_is_declared(home, channel, creation):
    declaring = home.connect().channel()
    begin(declaring, creation)
    assert channel.queue_delete("wide").method.message_count == 0
    with pytest.raises(pika.exceptions.UnroutableError):
        publish(channel, "", [b"1"], "wide")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange 'wide'"):
        publish(channel, "wide", [b"1"])
    creation.may_end.set()
    assert finished(declaring).method.message_count == 0
    assert len(directories(home)) == COUNT


def test_later_methods_of_the_channel_find_the_log(home, creation, readers):
    declaring = home.connect().channel()
    begin(declaring, creation)
    declaring._impl.basic_publish("wide", "key", b"early")
    creation.may_end.set()
    finished(declaring)
    assert readers("wide", x_stream_offset="first").read(1).bodies == [b"early"]


def test_second_declaration_waits_for_the_first(home, creation):
    first, second = home.connect().channel(), home.connect().channel()
    begin(first, creation)
    begin(second, creation)
    creation.may_end.set()
    finished(first)
    finished(second)
    assert creation.created == COUNT
    assert len(directories(home)) == COUNT


def test_second_declaration_with_other_arguments_is_refused(home, creation):
    first, second = home.connect().channel(), home.connect().channel()
    begin(first, creation)
    begin(second, creation, {**WIDE, "x-max-age": "1h"})
    creation.may_end.set()
    finished(first)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-max-age"):
        finished(second)
    wait_for(lambda: len(directories(home)) == COUNT)


def test_name_that_is_taken_meanwhile(home, channel, creation):
    declaring = home.connect().channel()
    begin(declaring, creation)
    channel.queue_declare("wide-7", durable=True)
    creation.may_end.set()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="'wide-7' in vhost '/' exists"):
        finished(declaring)
    assert wide_names(home) == ["wide-7"]
    wait_for(lambda: directories(home) == [])


def test_client_that_leaves_leaves_nothing(home, channel, creation):
    declaring = home.connect()
    begin(declaring.channel(), creation)
    declaring._impl._transport._sock.shutdown(2)
    wait_for(lambda: len(home.hub.connections) == 1)
    creation.may_end.set()
    wait_for(lambda: directories(home) == [])
    assert wide_names(home) == []
    declare(channel, "wide", partitions=COUNT)
    publish(channel, "wide", [b"1"])


def test_log_is_declared_before_its_connection_closes(home, creation):
    declaring = home.connect()
    begin(declaring.channel(), creation)
    threading.Timer(0.05, creation.may_end.set).start()
    declaring.close()
    assert len(wide_names(home)) == COUNT + 2


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_failed_creation_is_reported_and_leaves_nothing(home, channel, creation, number):
    declaring = home.connect().channel()
    begin(declaring, creation)
    creation.error = number
    creation.may_end.set()
    with pytest.raises(pika.exceptions.ConnectionClosed, match="cannot open queue 'wide-38'"):
        finished(declaring)
    assert wide_names(home) == []
    wait_for(lambda: directories(home) == [])
    assert not home.hub.alarms.raised
    declare(channel, "wide", partitions=COUNT)
    assert len(directories(home)) == COUNT


def test_refused_declaration_creates_no_files(home, channel, creation):
    refused = home.connect().channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-sync-interval"):
        declare(refused, "wide", partitions=COUNT, sync_interval=1_000_000)
    assert creation.created == 0


def test_crash_during_creation_leaves_nothing(home, channel, creation, tmp_path):
    """The next start removes directories without records, and keeps all others."""
    declaring = home.connect().channel()
    declare(channel, "log")
    publish(channel, "", [b"kept"], "log")
    begin(declaring, creation)
    crashed = tmp_path / "crashed"
    shutil.copytree(home.data_dir, crashed)
    creation.may_end.set()
    finished(declaring)
    home.stop()
    home.data_dir = crashed
    with_records = crashed / "logs" / str(log_id(crashed, with_records=True))
    shutil.copytree(with_records, crashed / "logs" / "900")
    (crashed / "logs" / "901").mkdir()
    home.start()
    assert wide_names(home) == []
    assert directories(home) == sorted([with_records.name, "900"])
    declare(home.connect().channel(), "wide", partitions=COUNT)
    assert len(directories(home)) == COUNT + 2


def log_id(data_dir: Path, with_records: bool) -> int:
    [found] = [
        path.name
        for path in (data_dir / "logs").iterdir()
        if with_records == any(file.stat().st_size for file in path.glob("*.log"))
    ]
    return int(found)


async def test_broker_that_stops_leaves_nothing(tmp_path, creation):
    settings = in_process_settings(data_dir=tmp_path / "data")
    async with RunningBroker(settings) as running:
        logs = running.broker.logs
        creating = asyncio.create_task(logs.create("/", "wide", partitions=COUNT))
        await asyncio.to_thread(creation.is_waiting.wait, WITHIN)
        threading.Timer(0.05, creation.may_end.set).start()
    with pytest.raises(BrokerError, match="stopping"):
        await creating
    assert list((tmp_path / "data" / "logs").iterdir()) == []
    async with RunningBroker(settings) as running:
        assert "wide" not in running.broker.vhosts["/"].queues


@pytest.fixture
async def running(tmp_path):
    async with RunningBroker(in_process_settings(data_dir=tmp_path / "data")) as running:
        yield running


async def test_service_declares_a_wide_log_once(running):
    logs = running.broker.logs
    results = await asyncio.gather(*(logs.create("/", "wide", partitions=COUNT) for _ in range(3)))
    assert len(logs.describe("/", "wide").partitions) == COUNT
    assert len(results) == 3
    with pytest.raises(PreconditionFailed, match="x-partitions"):
        await logs.create("/", "wide", partitions=COUNT + 1)


async def test_virtual_host_that_is_deleted_meanwhile(running, creation):
    broker = running.broker
    broker.add_vhost("tenant")
    creating = asyncio.create_task(broker.logs.create("tenant", "wide", partitions=COUNT))
    await asyncio.to_thread(creation.is_waiting.wait, WITHIN)
    broker.delete_vhost("tenant")
    creation.may_end.set()
    with pytest.raises(NotFound, match="no vhost 'tenant'"):
        await creating


async def test_files_of_staged_logs_are_counted(running, creation, monkeypatch):
    """Two wide logs that are declared at the same time must not open too many files together."""
    broker = running.broker
    monkeypatch.setattr("leveret.broker.logs.manager.max_open_files", lambda: 6 * (COUNT + 30))
    spec = QueueSpec("wide", True, arguments=WIDE)
    staging = broker.log_manager.staging
    first = asyncio.create_task(staging.declare(broker.vhosts["/"], spec))
    await asyncio.sleep(0)
    with pytest.raises(BrokerError, match="use half of the files"):
        await staging.declare(broker.vhosts["/"], QueueSpec("other", True, arguments=WIDE))
    creation.may_end.set()
    assert (await first).name == "wide"
