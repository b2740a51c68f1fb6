"""Logs that are shorter than the database says: lost directories, and older copies of them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from leveret.queues.log.files.errors import TRUNCATED
from leveret.queues.storage.log_ends import RESERVED_RECORDS
from tests.log.conftest import STREAM, Home, declare, numbered, publish
from tests.torture.checker import Ledger
from tests.torture.process import BrokerProcess
from tests.torture.publisher import Publisher


def lose(home: Any, copy: Path | None = None) -> None:
    """Stop the broker, replace `logs/` by an older copy or by nothing, and start it again."""
    home.stop()
    shutil.rmtree(home.data_dir / "logs")
    if copy is not None:
        shutil.copytree(copy, home.data_dir / "logs")
    home.start()


def copy_logs(home: Home) -> Path:
    """A copy of `logs/` as it is now, made while the broker is stopped."""
    home.stop()
    copy = home.data_dir.with_name("older")
    shutil.copytree(home.data_dir / "logs", copy)
    home.start()
    return copy


def send(home: Any, count: int, start: int = 0) -> None:
    channel = home.connect().channel()
    channel.confirm_delivery()
    publish(channel, "", numbered(count, start), "log")


def partition(home: Any) -> Any:
    (only,) = home.hub.logs.describe("/", "log").partitions
    return only


def group(home: Any) -> Any:
    (only,) = home.hub.logs.groups("/", "log")
    return only


@pytest.fixture
def older(home, channel, readers):
    """A log whose files are a copy with 100 records, while 150 were confirmed."""
    declare(channel, "log")
    send(home, 100)
    copy = copy_logs(home)
    send(home, 50, start=100)
    return copy


def test_lost_directory_is_reported_and_no_offset_is_assigned_again(home, channel, readers, caplog):
    declare(channel, "log")
    send(home, 150)
    readers("log", x_group="g", x_stream_offset="first").read(150).close()
    lose(home)
    (damage,) = partition(home).damage
    assert (damage.first_offset, damage.next_offset, damage.reason) == (0, 150, TRUNCATED)
    assert f"offsets 0 to 149 are lost ({TRUNCATED})" in caplog.text
    assert (partition(home).messages, group(home).lag) == (0, 0)
    send(home, 3)
    assert group(home).lag == 3
    reader = readers("log", x_group="g").read(3)
    assert reader.offsets == [150, 151, 152]
    home.restart()
    assert partition(home).damage == [damage]
    assert partition(home).next_offset == 153


def test_older_copy_is_reported_and_counted(home, readers, older):
    lose(home, older)
    (damage,) = partition(home).damage
    assert (damage.first_offset, damage.next_offset, damage.reason) == (100, 150, TRUNCATED)
    send(home, 2)
    assert partition(home).messages == 102
    reader = readers("log", x_stream_offset="first").read(102)
    assert reader.offsets == [*range(100), 150, 151]


@pytest.mark.parametrize(
    ("start", "expected"), [("first", [*range(100), 150]), ("next", [151]), (None, [151])]
)
def test_group_in_the_lost_part_moves_by_its_start_offset(
    home, readers, older, caplog, start, expected
):
    """Like auto.offset.reset: earliest or latest."""
    reader = readers("log", x_group="g", x_stream_offset="first", prefetch=140)
    reader.acks = False
    reader.read(140)
    reader.channel.basic_ack(reader.records[-1][0].delivery_tag, multiple=True)
    reader.channel.basic_qos(prefetch_count=1)  # the reply comes when the acks are handled
    reader.close()
    lose(home, older)
    assert group(home).partitions[0].committed == 140
    send(home, 1)
    home.restart()  # it is still known to be lost
    arguments = {} if start is None else {"x_stream_offset": start}
    again = readers("log", x_group="g", **arguments)
    if start == "first":
        assert again.read(101).offsets == expected
    else:
        again.pump(0.2)
        send(home, 1)
        assert again.read(1).offsets == expected
    assert "the end of the log was lost; group 'g' moves from offset 140" in caplog.text


def test_group_at_the_recorded_end_continues_there(home, readers, older):
    readers("log", x_group="g", x_stream_offset="first").read(150).close()
    lose(home, older)
    send(home, 2)
    assert group(home).lag == 2
    assert readers("log", x_group="g", x_stream_offset="first").read(2).offsets == [150, 151]


def test_group_before_the_lost_part_skips_it(home, readers, older):
    reader = readers("log", x_group="g", x_stream_offset="first", prefetch=1)
    reader.acks = False
    reader.read(1).close()
    lose(home, older)
    send(home, 1)
    assert group(home).lag == 101
    assert readers("log", x_group="g").read(101).offsets[-1] == 150
    assert home.hub.vhosts["/"].queues["log"].skipped == 50


def test_offsets_of_groups_tell_the_end_if_it_was_never_recorded(home, channel, readers):
    """Data of a version that did not record it."""
    declare(channel, "log")
    send(home, 150)
    readers("log", x_group="g", x_stream_offset="first").read(150).close()
    home.stop()
    with closing(sqlite3.connect(home.data_dir / "leveret.db")) as database:
        database.execute("DELETE FROM log_ends")
        database.commit()
    shutil.rmtree(home.data_dir / "logs")
    home.start()
    assert partition(home).next_offset == 150


def test_intact_log_reports_nothing(home, older):
    home.restart()
    assert (partition(home).damage, partition(home).next_offset) == ([], 150)


def test_deleted_log_leaves_no_end(home, channel, older):
    home.connect().channel().queue_delete("log")
    home.stop()
    with closing(sqlite3.connect(home.data_dir / "leveret.db")) as database:
        assert database.execute("SELECT * FROM log_ends").fetchall() == []


# kill -9 -----------------------------------------------------------------------------------------


async def publish_and_kill(broker: BrokerProcess, count: int) -> None:
    """Killed right after the last confirm."""
    await broker.start()
    ledger = Ledger()
    publisher = Publisher(ledger, "log", 1, declare=False)
    await publisher.start(broker.address)
    arguments: Any = STREAM
    declare_log = commands.Queue.Declare(queue="log", durable=True, arguments=arguments)
    await publisher.client.call(declare_log, commands.Queue.DeclareOk)
    await publisher.send_many(count)
    await broker.kill()
    publisher.client.close()
    assert publisher.confirmed == count


@pytest.mark.parametrize("is_restored", [True, False])
async def test_kill_right_after_a_confirm_and_loss_of_the_files(tmp_path, is_restored):
    """The end is not recorded exactly then, but no offset is assigned twice."""
    home, copy = Home(tmp_path / "data"), tmp_path / "copy"
    broker = BrokerProcess(home.data_dir)
    await publish_and_kill(broker, 200)
    shutil.copytree(home.data_dir / "logs", copy)
    await publish_and_kill(broker, 200)
    shutil.rmtree(home.data_dir / "logs")
    if is_restored:
        shutil.copytree(copy, home.data_dir / "logs")
    await asyncio.to_thread(home.start)
    try:
        (damage,) = partition(home).damage
        assert damage.reason == TRUNCATED
        assert damage.first_offset == (200 if is_restored else 0)
        assert 400 <= damage.next_offset <= 400 + RESERVED_RECORDS
        await asyncio.to_thread(send, home, 1)
        assert partition(home).next_offset == damage.next_offset + 1
    finally:
        await asyncio.to_thread(home.stop)
