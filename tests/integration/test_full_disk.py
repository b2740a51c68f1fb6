"""A full or failed disk during transactions and dead-lettering, which clients cannot repeat.

A copy of the data directory shows the state that a crash at that moment would leave.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from leveret.launch import ThreadedBroker, in_process_settings
from leveret.model.store import StoreState
from tests.contract.stores import copy_as_after_crash
from tests.support.polling import wait_until

DEADLINE = 60
STREAM = {"x-queue-type": "stream"}
KINDS = pytest.mark.parametrize("arguments", [{}, STREAM], ids=["classic", "stream"])


class Node:
    """A running broker with a data directory on a disk that can be made to fail."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.data_dir = data_dir
        self._threaded = ThreadedBroker(in_process_settings(data_dir=data_dir, **settings))
        self._threaded.__enter__()
        self._clients: list[pika.BlockingConnection] = []
        self.write_failed = threading.Event()
        self.copy_at_failure = data_dir.with_name("copy-at-failure")

    @property
    def broker(self) -> Any:
        assert self._threaded.running is not None
        return self._threaded.running.broker

    def channel(self) -> Any:
        self._clients.append(pika.BlockingConnection(pika.URLParameters(self._threaded.url)))
        return self._clients[-1].channel()

    def counts(self) -> dict[str, int]:
        return {name: queue.ready_count for name, queue in self.broker.vhosts["/"].queues.items()}

    @contextlib.contextmanager
    def failing_disk(self, code: int = errno.ENOSPC) -> Iterator[None]:
        """Every commit fails with this error number of the operating system."""
        store = self.broker.store
        wait_until(lambda: store.committed == store.batch_number)  # earlier work is committed
        transactor = store._writer._transactor
        real = transactor.run

        def fail(batch: object, now_ms: int) -> None:
            if not self.write_failed.is_set():  # logs are written and synced, the database is not
                copy_as_after_crash(self.data_dir, self.copy_at_failure)
            self.write_failed.set()
            raise OSError(code, "disk error of the test")

        transactor.run = fail
        try:
            yield
        finally:
            transactor.run = real

    def counts_after_crash(self) -> dict[str, int]:
        """The number of messages in each queue after a crash now."""
        copy = self.data_dir.with_name(f"crashed-{time.monotonic_ns()}")
        copy_as_after_crash(self.data_dir, copy)
        return recovered_counts(copy)

    def counts_after_crash_at_failure(self) -> dict[str, int]:
        """The number of messages in each queue after a crash at the first failed commit."""
        return recovered_counts(self.copy_at_failure)

    def stop(self) -> None:
        """Stop the clients first, unless the broker blocks them for ever."""
        if self.broker.store.state is not StoreState.FAILED:
            wait_until(lambda: not self.broker.alarms.reason)
            self._close_clients()
        self.stop_broker_first()

    def stop_broker_first(self) -> None:
        self._threaded.__exit__(None, None, None)
        self._close_clients()

    def _close_clients(self) -> None:
        for client in self._clients:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError, AssertionError):
                client.close()


def recovered_counts(data_dir: Path) -> dict[str, int]:
    """The number of messages that each queue has after a start on this directory."""
    node = Node(data_dir)
    try:
        return node.counts()
    finally:
        node.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "data")
    yield node
    node.stop()


def declare(node: Node, *names: str, **arguments: Any) -> None:
    channel = node.channel()
    for name in names:
        channel.queue_declare(name, durable=True, arguments=arguments)


def fill(node: Node, queue: str, count: int) -> None:
    channel = node.channel()
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", queue, b"work", pika.BasicProperties(delivery_mode=2))


class Commit(threading.Thread):
    """A transaction with an ack in `work` and two publishes to `out`, on its own thread."""

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self._channel = node.channel()
        self._channel.tx_select()
        method, _, _ = self._channel.basic_get("work")
        for _ in range(2):
            properties = pika.BasicProperties(delivery_mode=2)
            self._channel.basic_publish("", "out", b"result", properties)
        self._channel.basic_ack(method.delivery_tag)
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._channel.tx_commit()
        except pika.exceptions.AMQPError as error:
            self.error = error


@KINDS
def test_transaction_waits_while_the_disk_is_full_and_stays_atomic(node, arguments):
    declare(node, "work")
    declare(node, "out", **arguments)
    fill(node, "work", 3)
    commit = Commit(node)
    with node.failing_disk():
        commit.start()
        assert node.write_failed.wait(DEADLINE)
        wait_until(lambda: node.broker.alarms.reason)
        assert node.counts_after_crash() == {"work": 3, "out": 0}
        assert commit.is_alive()
    commit.join(DEADLINE)
    assert not commit.is_alive()
    assert commit.error is None
    assert node.counts_after_crash() == {"work": 2, "out": 2}
    wait_until(lambda: node.counts() == {"work": 2, "out": 2})


def test_transaction_waits_if_the_disk_alarm_is_already_raised(node):
    declare(node, "work", "out")
    fill(node, "work", 3)
    commits = [Commit(node), Commit(node)]
    with node.failing_disk():
        commits[0].start()
        assert node.write_failed.wait(DEADLINE)
        wait_until(lambda: node.broker.alarms.reason)
        commits[1].start()
        assert node.counts_after_crash() == {"work": 3, "out": 0}
    for commit in commits:
        commit.join(DEADLINE)
        assert not commit.is_alive()
        assert commit.error is None
    assert node.counts_after_crash() == {"work": 1, "out": 4}


def test_transaction_with_acks_only_is_applied_while_the_disk_is_full(node):
    declare(node, "work", "out")
    fill(node, "work", 3)
    commit, channel = Commit(node), node.channel()
    channel.tx_select()
    with node.failing_disk():
        commit.start()
        assert node.write_failed.wait(DEADLINE)
        wait_until(lambda: node.broker.alarms.reason)
        method, _, _ = channel.basic_get("work")
        channel.basic_ack(method.delivery_tag)
        acks = threading.Thread(target=channel.tx_commit, daemon=True)
        acks.start()
        wait_until(lambda: node.broker.vhosts["/"].queues["work"].unacked_count == 0)
    for thread in (commit, acks):
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert node.counts_after_crash() == {"work": 1, "out": 2}


def test_transaction_during_a_disk_failure_stores_nothing(node):
    declare(node, "work", "out")
    fill(node, "work", 3)
    commit = Commit(node)
    with node.failing_disk(errno.EIO):
        commit.start()
        commit.join(DEADLINE)
    assert isinstance(commit.error, pika.exceptions.ConnectionClosedByBroker)
    assert commit.error.reply_code == 541
    assert node.counts_after_crash() == {"work": 3, "out": 0}


@pytest.mark.parametrize("started", ["before", "after", "used before"])
def test_transaction_on_a_failed_disk_closes_the_connection(node, started):
    """It is not blocked by an alarm, because the alarm would never end."""
    declare(node, "work", "out")
    fill(node, "work", 3)
    channel, other = node.channel(), node.channel()
    channel.tx_select()
    if started == "used before":
        channel.basic_publish("", "out", b"1")
        channel.tx_commit()
    elif started == "before":
        channel.basic_publish("", "out", b"1")
        channel.basic_qos(prefetch_count=1)  # the reply shows that the publish was handled
    blocked: list[Any] = []
    channel.connection.add_on_connection_blocked_callback(lambda *_: blocked.append("blocked"))
    with node.failing_disk(errno.EIO):
        with pytest.raises(pika.exceptions.NackError):
            fill(node, "work", 1)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            if started == "after":
                channel.basic_publish("", "out", b"1")
            channel.tx_commit()
    assert closed.value.reply_code == 541
    assert "disk error of the test" in closed.value.reply_text
    assert blocked == []
    assert other.queue_declare("work", passive=True).method.message_count == 4
    assert node.counts_after_crash()["work"] == 3


@pytest.mark.parametrize("failed", ["before", "meanwhile"])
def test_basic_get_on_a_failed_disk_closes_the_connection(node, failed):
    """The first delivery waits for a commit, which fails."""
    declare(node, "work")
    fill(node, "work", 3)
    channel = node.channel()
    with node.failing_disk(errno.EIO):
        if failed == "before":
            with pytest.raises(pika.exceptions.NackError):
                fill(node, "work", 1)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            channel.basic_get("work")
    assert closed.value.reply_code == 541
    assert node.counts_after_crash() == {"work": 3}


def test_stop_while_a_transaction_waits_fails_it_and_stores_nothing(tmp_path):
    node = Node(tmp_path / "data")
    declare(node, "work", "out")
    fill(node, "work", 3)
    commit = Commit(node)
    with node.failing_disk():
        commit.start()
        assert node.write_failed.wait(DEADLINE)
        wait_until(lambda: node.broker.alarms.reason)
        node.stop_broker_first()
    commit.join(DEADLINE)
    assert isinstance(commit.error, pika.exceptions.AMQPConnectionError)
    again = Node(tmp_path / "data")
    assert again.counts() == {"work": 3, "out": 0}
    again.stop()


@KINDS
def test_dead_letter_during_a_full_disk_is_in_exactly_one_queue(node, arguments):
    declare(node, "out", **arguments)
    declare(node, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "out"})
    fill(node, "work", 3)
    channel = node.channel()
    method, _, _ = channel.basic_get("work")
    with node.failing_disk():
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.connection.process_data_events(0)
        assert node.write_failed.wait(DEADLINE)
        assert node.counts_after_crash() == {"work": 3, "out": 0}
    channel.basic_qos(prefetch_count=1)  # the reply comes when the reject is on disk
    assert node.counts_after_crash() == {"work": 2, "out": 1}


def test_crash_between_log_and_database_commit_drops_the_transaction_from_both(node):
    declare(node, "work")
    declare(node, "out", **STREAM)
    fill(node, "work", 3)
    fill(node, "out", 2)
    commit = Commit(node)
    with node.failing_disk():
        commit.start()
        assert node.write_failed.wait(DEADLINE)
    commit.join(DEADLINE)
    assert node.counts_after_crash() == {"work": 2, "out": 4}
    for _ in range(2):  # the second start finds the state that the first one left
        assert node.counts_after_crash_at_failure() == {"work": 3, "out": 2}
    again = Node(node.copy_at_failure)
    fill(again, "out", 1)
    again.stop()
    assert node.counts_after_crash_at_failure() == {"work": 3, "out": 3}


def test_crash_between_log_and_database_commit_keeps_the_dead_letter_in_its_source(node):
    declare(node, "out", **STREAM)
    declare(node, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "out"})
    fill(node, "work", 3)
    channel = node.channel()
    method, _, _ = channel.basic_get("work")
    with node.failing_disk():
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.connection.process_data_events(0)
        assert node.write_failed.wait(DEADLINE)
    assert node.counts_after_crash_at_failure() == {"work": 3, "out": 0}


def test_messages_lost_to_a_full_disk_do_not_count_as_unreadable(tmp_path):
    node = Node(tmp_path / "data", queue_window=10)
    declare(node, "work")
    fill(node, "work", 20)
    with node.failing_disk(), pytest.raises(pika.exceptions.NackError):
        fill(node, "work", 1)
    wait_until(lambda: not node.broker.alarms.reason)
    fill(node, "work", 5)
    channel, queue = node.channel(), node.broker.vhosts["/"].queues["work"]
    received = 0
    while queue.ready_count:
        received += channel.basic_get("work", auto_ack=True)[0] is not None
    assert received == 25
    assert queue.counters.unreadable == 0
    node.stop()


def test_numbered_messages_of_a_waiting_transaction_are_stored_once(node):
    declare(node, "out", **STREAM)
    headers = {"x-producer-id": "p", "x-producer-seq": 1}
    properties = pika.BasicProperties(headers=headers)
    channel, other = node.channel(), node.channel()
    other.confirm_delivery()
    channel.tx_select()
    channel.basic_publish("", "out", b"1", properties)
    commit = threading.Thread(target=channel.tx_commit, daemon=True)
    with node.failing_disk():
        commit.start()
        assert node.write_failed.wait(DEADLINE)
        wait_until(lambda: node.broker.alarms.reason)
    commit.join(DEADLINE)
    other.basic_publish("", "out", b"1", properties)  # a duplicate: confirmed, not stored
    assert node.counts() == {"out": 1}


def test_a_failed_batch_ends_the_wait_for_the_backlog(node):
    """Nothing of it may be left to commit, and the alarm pauses publishers in its own way."""
    declare(node, "q")
    channel = node.channel()
    waiting = Waiting()
    with node.failing_disk():
        node.broker.resource_monitor.pause_until_backlog_drained(waiting)
        channel.basic_publish("", "q", b"work", pika.BasicProperties(delivery_mode=2))
        assert waiting.is_resumed.wait(DEADLINE)
        assert node.write_failed.is_set()


class Waiting:
    """A publisher that is paused because too much waits to be written."""

    def __init__(self) -> None:
        self.is_resumed = threading.Event()

    def on_backlog_drained(self) -> None:
        self.is_resumed.set()
