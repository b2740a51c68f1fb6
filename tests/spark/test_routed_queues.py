"""The queues that messages were routed to, against the ledger and after events were trimmed."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from sqlalchemy import delete, insert, literal_column, update

from leveret.model.history import EventKind
from leveret.queues.storage import schema
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.packing import pack_ids
from leveret.spark_sink.arrow import routed_queues
from leveret.spark_sink.arrow.local import LocalSource
from leveret.spark_sink.arrow.routed_queues import RoutedQueuesReader
from leveret.spark_sink.arrow.selection import Request, Selection
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.arrow.sql import Database
from tests.spark.generator import FakeBroker

COLUMNS = ("id", "queue", "queues")
ALL = Selection()


@pytest.fixture
def small_windows(monkeypatch):
    """Windows and chunks so small that every boundary between them is crossed."""
    for name, value in (("WINDOW_IDS", 7), ("COMMIT_IDS", 16), ("COMMIT_ROWS", 40)):
        monkeypatch.setattr(routed_queues, name, value)
    monkeypatch.setattr("leveret.spark_sink.arrow.chunking.CHUNK_ROWS", 3)


def read(broker, span=(0, 2**62), selection=ALL, columns=COLUMNS):
    low, high = span
    with LocalSource(broker.data_dir) as source:
        batches = source.read(Request("messages", low, high, columns, selection), ReadStats())
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def expected(broker, numbers=None):
    rows = []
    for number in sorted(broker.ledger.messages) if numbers is None else numbers:
        queues = broker.ledger.queues_of(number)
        rows.append((number, queues[0] if queues else None, queues))
    return rows


def test_queues_are_those_of_the_ledger(broker):
    broker.traffic(60)
    assert read(broker) == expected(broker)
    assert {len(queues) for _, _, queues in expected(broker)} == {0, 1, 2}


@pytest.mark.parametrize("pairs", [1, 5, 1 << 21])
def test_result_does_not_depend_on_the_window_size(broker, small_windows, monkeypatch, pairs):
    monkeypatch.setattr(routed_queues, "WINDOW_PAIRS", pairs)
    broker.traffic(60)
    assert read(broker) == expected(broker)
    last = max(broker.ledger.messages)
    for low in range(1, last, 11):
        assert read(broker, (low, low + 5)) == expected(broker, range(low, min(low + 5, last + 1)))


def test_later_events_change_nothing(broker, small_windows):
    """A later read returns the same for the same messages."""
    broker.traffic(20)
    before = read(broker)
    broker.traffic(30)
    for queue, live in broker.ledger.live.items():
        for number in list(live):
            broker.record(EventKind.SNAPSHOT, queue, number, size=1)
            broker.record(EventKind.ACKED, queue, number, 3)
    broker.commit()
    assert read(broker, (0, before[-1][0] + 1)) == before


def test_message_is_selected_by_every_queue_it_was_routed_to(broker, small_windows):
    broker.traffic(30)
    for queue in ("orders", "123"):
        selected = [row for row in expected(broker) if queue in row[2]]
        assert read(broker, selection=Selection(queues=(queue,))) == selected
    both = [row for row in expected(broker) if {"orders", "123"} & {*row[2]}]
    assert read(broker, selection=Selection(queues=("orders", "123"))) == both


def test_snapshots_name_the_queues_of_messages_whose_events_were_trimmed(broker):
    old = broker.publish(["orders", "mail"], b"old")
    broker.commit()
    broker.record(EventKind.ACKED, "orders", old, 3)
    broker.record(EventKind.SNAPSHOT, "mail", old, size=3)
    broker.commit()
    broker.publish(["123"], b"new")
    broker.commit()
    gone = (EventKind.PUBLISHED, EventKind.ENQUEUED)
    with broker.engine.begin() as connection:
        events = schema.events.c
        connection.execute(
            delete(schema.events).where(events.last_id == old, events.kind.in_(map(int, gone)))
        )
    assert read(broker) == [(old, "mail", ["mail"]), (old + 1, "123", ["123"])]


def test_snapshots_are_not_read_where_nothing_was_trimmed(broker, small_windows, monkeypatch):
    broker.traffic(60)
    monkeypatch.setattr(routed_queues, "_SNAPSHOT", literal_column("no_such_column"))
    last = max(broker.ledger.messages)
    assert read(broker, (100, last + 1)) == expected(broker, range(100, last + 1))


def test_queues_without_history_are_not_named(broker):
    for queues in (["orders", "mail"], ["orders"], ["mail"]):
        broker.publish(queues, b"x")
    broker.commit()
    with broker.engine.begin() as connection:
        connection.execute(
            insert(schema.policies),
            {"vhost": "/", "name": "quiet", "pattern": "^orders$", "operator": False,
             "definition": '{"history": "off"}'},
        )  # fmt: skip
    assert read(broker) == [(1, "mail", ["mail"]), (2, None, []), (3, "mail", ["mail"])]
    assert read(broker, selection=Selection(queues=("orders",))) == []
    with LocalSource(broker.data_dir) as source:
        counted = source.count(Request("messages", 0, 2**62, ()))
    assert {group["queue"]: group["rows"] for group in counted["groups"]} == {"mail": 2, None: 1}


def test_transient_messages_and_messages_recorded_twice(broker):
    broker.publish(["mail"], b"x")
    broker.record(EventKind.ENQUEUED_TRANSIENT, "orders", 1, 1, size=1)
    broker.record(EventKind.ENQUEUED, "mail", 1, 2, size=1)
    broker.commit()
    assert read(broker) == [(1, "orders", ["orders", "mail"])]


def test_queues_with_equal_names_in_two_vhosts_are_distinct(broker):
    broker.publish(["orders"], b"x")
    broker.publish(["mail"], b"x")
    broker.commit()
    with broker.engine.begin() as connection:
        mail = schema.queues.c.name == "mail"
        connection.execute(update(schema.queues).where(mail).values(name="orders", vhost="other"))
    with LocalSource(broker.data_dir) as source:
        groups = source.count(Request("messages", 0, 2**62, ()))["groups"]
    assert [(group["vhost"], group["queue"]) for group in groups] == [
        ("/", "orders"), ("other", "orders")
    ]  # fmt: skip


def test_events_are_read_only_when_requested(broker, monkeypatch):
    broker.traffic(3)
    monkeypatch.setattr(RoutedQueuesReader, "_move_window", None)
    assert len(read(broker, columns=("id", "vhost", "body"))) == len(broker.ledger.messages)
    with pytest.raises(TypeError):
        read(broker)


def test_work_grows_linearly_with_the_history(tmp_path, small_windows):
    """Counts SQLite instructions; one commit per message is the worst case."""
    instructions = []
    for size in (2_000, 8_000):
        broker = FakeBroker(tmp_path / str(size))
        fill(broker, size)
        instructions.append(steps(broker, size))
        broker.close()
    assert instructions[1] < 5 * instructions[0]


def fill(broker, size):
    """Messages published, enqueued and acked, each in its own commit."""
    with closing(sqlite3.connect(broker.data_dir / DATABASE_NAME)) as connection, connection:
        connection.executemany(
            "INSERT INTO events (kind, queue_id, count, first_id, last_id, ids)"
            " VALUES (?, ?, 1, ?, ?, ?)",
            [
                (int(kind), queue, number, number, pack_ids([number]))
                for number in range(1, size + 1)
                for kind, queue in (
                    (EventKind.PUBLISHED, 0), (EventKind.ENQUEUED, 1), (EventKind.ACKED, 1)
                )
            ],
        )  # fmt: skip


def steps(broker, size, part=200):
    """SQLite instructions to look up all messages, one split at a time."""
    counted = itertools.count()
    with Database(broker.data_dir) as database:
        database._connection.set_progress_handler(lambda: next(counted) < 0, 10)
        for low in range(1, size + 1, part):
            reader = RoutedQueuesReader(database, low + part)
            for start in range(low, low + part, 20):
                routed = reader.lookup(np.arange(start, start + 20))
                assert routed.counts.tolist() == [1] * 20
        database._connection.set_progress_handler(None, 0)
    return next(counted)
