"""R-12: a file system with space but without inodes: no more logs, and everything else works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from leveret.launch import ThreadedBroker, in_process_settings
from tests.support.polling import wait_until
from tests.torture.mounts import MIB, small_disk

STREAM = {"x-queue-type": "stream"}
INODES = 40


@pytest.fixture
def broker(tmp_path) -> Iterator[ThreadedBroker]:
    with (
        small_disk(tmp_path, "tmpfs", 500 * MIB, INODES) as disk,
        ThreadedBroker(in_process_settings(data_dir=disk / "data")) as broker,
    ):
        yield broker


def connect(broker: ThreadedBroker) -> Any:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def use_all_inodes(channel: Any, **arguments: Any) -> str:
    """Declare logs until that is refused; the error."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as refused:
        for number in range(INODES):
            name = f"log-{number}"
            channel.queue_declare(name, durable=True, arguments={**STREAM, **arguments})
    return str(refused.value.reply_text)


def test_log_that_cannot_be_created_does_not_hold_up_other_declarations(broker):
    reason = use_all_inodes(connect(broker))
    assert "cannot open queue 'log-" in reason and "inodes" in reason
    other = connect(broker)
    other.queue_declare("work", durable=True)
    other.basic_publish("", "work", b"1", pika.BasicProperties(delivery_mode=2))
    other.basic_publish("", "log-0", b"1")
    assert broker.running is not None
    assert broker.running.broker.alarms.raised == {}
    other.queue_delete("log-1")
    other.connection.close()
    wait_until(lambda: _can_declare(broker, "log-new"))  # the files are deleted a little later


def test_wide_log_that_cannot_be_created_leaves_nothing(broker):
    channel = connect(broker)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="no inodes are left"):
        channel.queue_declare("wide", durable=True, arguments={**STREAM, "x-partitions": INODES})
    wait_until(lambda: _can_declare(broker, "log"))
    assert broker.running is not None
    vhost = broker.running.broker.vhosts["/"]
    assert list(vhost.queues) == ["log"] and "wide" not in vhost.exchanges


def _can_declare(broker: ThreadedBroker, name: str) -> bool:
    channel = connect(broker)
    try:
        channel.queue_declare(name, durable=True, arguments=STREAM)
    except pika.exceptions.ConnectionClosedByBroker:
        return False
    channel.basic_publish("", name, b"1")
    channel.connection.close()
    return True


def test_full_segment_is_continued_while_there_are_no_inodes(broker, caplog):
    use_all_inodes(connect(broker), **{"x-stream-max-segment-size-bytes": 1000})
    channel = connect(broker)
    for _ in range(30):
        channel.basic_publish("", "log-0", bytes(100))
    assert broker.running is not None
    log = broker.running.broker.vhosts["/"].queues["log-0"]
    assert log.ready_count == 30
    assert "continues in the full segment" in caplog.text
    channel.queue_delete("log-1")
    segments = len(log.partition.segments())
    for _ in range(30):
        channel.basic_publish("", "log-0", bytes(100))
    assert len(log.partition.segments()) > segments
    assert [record.offset for record in log.partition.read(0, 100)] == list(range(60))
    channel.connection.close()
