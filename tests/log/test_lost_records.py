"""Files of a log that are missing at start: reported everywhere, counted, and skipped visibly."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from leveret.http_admin.metrics.logs import log_totals
from leveret.queues.log.files.errors import MISSING_SEGMENT, TRUNCATED
from leveret.queues.log.files.segment import list_segments, log_path
from tests.log.conftest import declare, numbered, publish


def describe(home: Any, name: str = "log") -> Any:
    (partition,) = home.hub.logs.describe("/", name).partitions
    return partition


def metrics(home: Any) -> dict[str, float]:
    return {metric.name: metric.samples[0].value for metric in log_totals(home.hub)}


def lose_middle_segment(home: Any) -> range:
    """Stop the broker, remove a segment of its only log, and start it again; the lost offsets."""
    home.stop()
    (directory,) = (home.data_dir / "logs").iterdir()
    bases = [base for base, _ in list_segments(directory)]
    assert len(bases) >= 4
    log_path(directory, bases[1]).unlink()
    home.start()
    return range(bases[1], bases[2])


@pytest.fixture
def filled(home, channel):
    declare(channel, "log", stream_max_segment_size_bytes=2000)
    publish(channel, "", [bytes(100)] * 100, "log")
    return home


def test_missing_segment_is_reported_and_skipped(filled, readers, caplog):
    with_group = readers("log", x_group="g", x_stream_offset="first").read(3)
    with_group.close()
    lost = lose_middle_segment(filled)
    partition = describe(filled)
    (damage,) = partition.damage
    assert (damage.first_offset, damage.next_offset) == (lost.start, lost.stop)
    assert damage.reason == MISSING_SEGMENT
    assert (partition.messages, partition.lost) == (100 - len(lost), len(lost))
    assert f"offsets {lost.start} to {lost.stop - 1} are lost (missing segment)" in caplog.text
    values = metrics(filled)
    assert values["leveret_log_damaged_batches"] == 1
    assert values["leveret_log_lost_records"] == len(lost)
    queue = filled.hub.vhosts["/"].queues["log"]
    assert queue.ready_count == 100 - len(lost)
    reader = readers("log", x_stream_offset="first").read(100 - len(lost)).quiet()
    assert reader.offsets == [offset for offset in range(100) if offset not in lost]
    assert f"skips the offsets {lost.start} to {lost.stop - 1}, which are lost" in caplog.text
    assert queue.skipped == len(lost)
    assert metrics(filled)["leveret_log_skipped_records"] == len(lost)


def test_lag_does_not_count_lost_records(filled, readers):
    reader = readers("log", x_group="g", x_stream_offset="first", acks=False).read(1)
    reader.close()
    lost = lose_middle_segment(filled)
    (group,) = filled.hub.logs.groups("/", "log")
    assert group.lag == 100 - len(lost)
    again = readers("log", x_group="g").read(100 - len(lost))
    assert not set(again.offsets) & set(lost)


def test_missing_partition_directory_does_not_prevent_the_start(home, channel):
    declare(channel, "parts", partitions=3)
    for number in range(3):
        publish(channel, "parts", numbered(3), x_partition=number)
    lost = home.hub.vhosts["/"].queues["parts-1"].id
    home.stop()
    shutil.rmtree(home.data_dir / "logs" / str(lost))
    home.start()
    partitions = home.hub.logs.describe("/", "parts").partitions
    assert [partition.messages for partition in partitions] == [3, 0, 3]
    assert [[each.reason for each in partition.damage] for partition in partitions] == [
        [],
        [TRUNCATED],
        [],
    ]
