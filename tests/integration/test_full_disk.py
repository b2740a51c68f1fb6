"""A full disk in the middle of work that nobody would send again: transactions, dead letters.

What a crash at that moment would leave is looked at in a copy of the data directory.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from leveret.launch import ThreadedBroker, in_process_settings
from leveret.model.store import StoreState
from tests.contract.stores import copy_as_after_a_crash

DEADLINE = 60
STREAM = {"x-queue-type": "stream"}
KINDS = pytest.mark.parametrize("arguments", [{}, STREAM], ids=["classic", "stream"])


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Home:
    """A running broker on a data directory, whose disk can be made to refuse."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.data_dir = data_dir
        self._threaded = ThreadedBroker(in_process_settings(data_dir=data_dir, **settings))
        self._threaded.__enter__()
        self._clients: list[pika.BlockingConnection] = []
        self.refused = threading.Event()
        self.halfway = data_dir.with_name("halfway")

    @property
    def hub(self) -> Any:
        assert self._threaded.running is not None
        return self._threaded.running.broker

    def channel(self) -> Any:
        self._clients.append(pika.BlockingConnection(pika.URLParameters(self._threaded.url)))
        return self._clients[-1].channel()

    def counts(self) -> dict[str, int]:
        return {name: queue.ready_count for name, queue in self.hub.vhosts["/"].queues.items()}

    @contextlib.contextmanager
    def refusing(self, code: int = errno.ENOSPC) -> Iterator[None]:
        """No batch is written within; the error is the operating system's."""
        store = self.hub.store
        wait_for(lambda: store.committed == store.mark)  # not what came before
        transactor = store._writer._transactor
        real = transactor.run

        def refuse(batch: object, now_ms: int) -> None:
            if not self.refused.is_set():  # logs are written and synced, the database is not
                copy_as_after_a_crash(self.data_dir, self.halfway)
            self.refused.set()
            raise OSError(code, "the disk says no")

        transactor.run = refuse
        try:
            yield
        finally:
            transactor.run = real

    def after_a_crash(self) -> dict[str, int]:
        """How many messages each queue would come back with."""
        copy = self.data_dir.with_name(f"crashed-{time.monotonic_ns()}")
        copy_as_after_a_crash(self.data_dir, copy)
        home = Home(copy)
        try:
            return home.counts()
        finally:
            home.stop()

    def after_a_crash_halfway(self) -> dict[str, int]:
        """The same, had it crashed when the first batch was refused."""
        home = Home(self.halfway)
        try:
            return home.counts()
        finally:
            home.stop()

    def stop(self) -> None:
        """Clients first, unless they are blocked for good and so are not heard."""
        if self.hub.store.state is not StoreState.FAILED:
            wait_for(lambda: not self.hub.alarms.reason)
            self._close_clients()
        self.end()

    def end(self) -> None:
        """The broker first."""
        self._threaded.__exit__(None, None, None)
        self._close_clients()

    def _close_clients(self) -> None:
        for client in self._clients:
            with contextlib.suppress(pika.exceptions.AMQPError, OSError, AssertionError):
                client.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "data")
    yield home
    home.stop()


def declare(home: Home, *names: str, **arguments: Any) -> None:
    channel = home.channel()
    for name in names:
        channel.queue_declare(name, durable=True, arguments=arguments)


def fill(home: Home, queue: str, count: int) -> None:
    channel = home.channel()
    channel.confirm_delivery()
    for _ in range(count):
        channel.basic_publish("", queue, b"work", pika.BasicProperties(delivery_mode=2))


class Commit(threading.Thread):
    """A transaction of one ack in `work` and two publishes to `out`, on its own thread."""

    def __init__(self, home: Home) -> None:
        super().__init__(daemon=True)
        self._channel = home.channel()
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
def test_a_transaction_that_meets_a_full_disk_waits_and_is_never_halved(home, arguments):
    declare(home, "work")
    declare(home, "out", **arguments)
    fill(home, "work", 3)
    commit = Commit(home)
    with home.refusing():
        commit.start()
        assert home.refused.wait(DEADLINE)
        wait_for(lambda: home.hub.alarms.reason)
        assert home.after_a_crash() == {"work": 3, "out": 0}
        assert commit.is_alive()
    commit.join(DEADLINE)
    assert not commit.is_alive()
    assert commit.error is None
    assert home.after_a_crash() == {"work": 2, "out": 2}
    wait_for(lambda: home.counts() == {"work": 2, "out": 2})


def test_a_transaction_on_a_disk_known_to_be_full_waits(home):
    declare(home, "work", "out")
    fill(home, "work", 3)
    commits = [Commit(home), Commit(home)]
    with home.refusing():
        commits[0].start()
        assert home.refused.wait(DEADLINE)
        wait_for(lambda: home.hub.alarms.reason)
        commits[1].start()
        assert home.after_a_crash() == {"work": 3, "out": 0}
    for commit in commits:
        commit.join(DEADLINE)
        assert not commit.is_alive()
        assert commit.error is None
    assert home.after_a_crash() == {"work": 1, "out": 4}


def test_acks_in_a_transaction_go_on_while_the_disk_is_full(home):
    declare(home, "work", "out")
    fill(home, "work", 3)
    commit, channel = Commit(home), home.channel()
    channel.tx_select()
    with home.refusing():
        commit.start()
        assert home.refused.wait(DEADLINE)
        wait_for(lambda: home.hub.alarms.reason)
        method, _, _ = channel.basic_get("work")
        channel.basic_ack(method.delivery_tag)
        acks = threading.Thread(target=channel.tx_commit, daemon=True)
        acks.start()
        wait_for(lambda: home.hub.vhosts["/"].queues["work"].unacked_count == 0)
    for thread in (commit, acks):
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert home.after_a_crash() == {"work": 1, "out": 2}


def test_a_transaction_that_meets_a_failed_disk_leaves_nothing(home):
    declare(home, "work", "out")
    fill(home, "work", 3)
    commit = Commit(home)
    with home.refusing(errno.EIO):
        commit.start()
        commit.join(DEADLINE)
    assert isinstance(commit.error, pika.exceptions.ConnectionClosedByBroker)
    assert commit.error.reply_code == 541
    assert home.after_a_crash() == {"work": 3, "out": 0}


@pytest.mark.parametrize("begun", ["before", "after", "used before"])
def test_a_transaction_is_told_that_the_disk_has_failed(home, begun):
    """A publisher that waits for the end of an alarm would wait for ever."""
    declare(home, "work", "out")
    fill(home, "work", 3)
    channel, other = home.channel(), home.channel()
    channel.tx_select()
    if begun == "used before":
        channel.basic_publish("", "out", b"1")
        channel.tx_commit()
    elif begun == "before":
        channel.basic_publish("", "out", b"1")
        channel.basic_qos(prefetch_count=1)  # answered behind it
    told: list[Any] = []
    channel.connection.add_on_connection_blocked_callback(lambda *_: told.append("blocked"))
    with home.refusing(errno.EIO):
        with pytest.raises(pika.exceptions.NackError):
            fill(home, "work", 1)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            if begun == "after":
                channel.basic_publish("", "out", b"1")
            channel.tx_commit()
    assert closed.value.reply_code == 541
    assert "the disk says no" in closed.value.reply_text
    assert told == []
    assert other.queue_declare("work", passive=True).method.message_count == 4
    assert home.after_a_crash()["work"] == 3


@pytest.mark.parametrize("failed", ["before", "meanwhile"])
def test_a_get_from_a_failed_disk_is_told_so(home, failed):
    """A first delivery waits for its lease, which a failed disk never grants."""
    declare(home, "work")
    fill(home, "work", 3)
    channel = home.channel()
    with home.refusing(errno.EIO):
        if failed == "before":
            with pytest.raises(pika.exceptions.NackError):
                fill(home, "work", 1)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            channel.basic_get("work")
    assert closed.value.reply_code == 541
    assert home.after_a_crash() == {"work": 3}


def test_a_stop_while_a_transaction_waits_answers_with_an_error_and_leaves_nothing(tmp_path):
    home = Home(tmp_path / "data")
    declare(home, "work", "out")
    fill(home, "work", 3)
    commit = Commit(home)
    with home.refusing():
        commit.start()
        assert home.refused.wait(DEADLINE)
        wait_for(lambda: home.hub.alarms.reason)
        home.end()
    commit.join(DEADLINE)
    assert isinstance(commit.error, pika.exceptions.AMQPConnectionError)
    again = Home(tmp_path / "data")
    assert again.counts() == {"work": 3, "out": 0}
    again.stop()


@KINDS
def test_a_dead_letter_that_meets_a_full_disk_is_in_one_place(home, arguments):
    declare(home, "out", **arguments)
    declare(home, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "out"})
    fill(home, "work", 3)
    channel = home.channel()
    method, _, _ = channel.basic_get("work")
    with home.refusing():
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.connection.process_data_events(0)
        assert home.refused.wait(DEADLINE)
        assert home.after_a_crash() == {"work": 3, "out": 0}
    channel.basic_qos(prefetch_count=1)  # answered when the rejection is on disk
    assert home.after_a_crash() == {"work": 2, "out": 1}


def test_a_crash_between_log_and_database_leaves_a_transaction_in_neither(home):
    declare(home, "work")
    declare(home, "out", **STREAM)
    fill(home, "work", 3)
    fill(home, "out", 2)
    commit = Commit(home)
    with home.refusing():
        commit.start()
        assert home.refused.wait(DEADLINE)
    commit.join(DEADLINE)
    assert home.after_a_crash() == {"work": 2, "out": 4}
    for _ in range(2):  # the second start finds it as the first one left it
        assert home.after_a_crash_halfway() == {"work": 3, "out": 2}
    again = Home(home.halfway)
    fill(again, "out", 1)
    again.stop()
    assert home.after_a_crash_halfway() == {"work": 3, "out": 3}


def test_a_crash_between_log_and_database_leaves_a_dead_letter_at_its_source(home):
    declare(home, "out", **STREAM)
    declare(home, "work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "out"})
    fill(home, "work", 3)
    channel = home.channel()
    method, _, _ = channel.basic_get("work")
    with home.refusing():
        channel.basic_reject(method.delivery_tag, requeue=False)
        channel.connection.process_data_events(0)
        assert home.refused.wait(DEADLINE)
    assert home.after_a_crash_halfway() == {"work": 3, "out": 0}


def test_what_a_full_disk_lost_beyond_the_window_is_no_rot(tmp_path):
    home = Home(tmp_path / "data", queue_window=10)
    declare(home, "work")
    fill(home, "work", 20)
    with home.refusing(), pytest.raises(pika.exceptions.NackError):
        fill(home, "work", 1)
    wait_for(lambda: not home.hub.alarms.reason)
    fill(home, "work", 5)
    channel, queue = home.channel(), home.hub.vhosts["/"].queues["work"]
    taken = 0
    while queue.ready_count:
        taken += channel.basic_get("work", auto_ack=True)[0] is not None
    assert taken == 25
    assert queue.counters.rotten == 0
    home.stop()


def test_numbered_messages_of_a_waiting_transaction_are_stored_once(home):
    declare(home, "out", **STREAM)
    headers = {"x-producer-id": "p", "x-producer-seq": 1}
    properties = pika.BasicProperties(headers=headers)
    channel, other = home.channel(), home.channel()
    other.confirm_delivery()
    channel.tx_select()
    channel.basic_publish("", "out", b"1", properties)
    commit = threading.Thread(target=channel.tx_commit, daemon=True)
    with home.refusing():
        commit.start()
        assert home.refused.wait(DEADLINE)
        wait_for(lambda: home.hub.alarms.reason)
    commit.join(DEADLINE)
    other.basic_publish("", "out", b"1", properties)  # a repetition: confirmed, not stored
    assert home.counts() == {"out": 1}
