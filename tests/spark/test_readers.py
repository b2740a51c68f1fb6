"""The readers against the ledger, without Spark."""

from __future__ import annotations

import io
from collections import Counter
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import insert, update

from leveret.model.history import EventKind
from queues.storage import schema
from spark_sink.chunks import Tally
from spark_sink.errors import SourceError
from spark_sink.readers import LocalSource, all_columns, answer_export, answer_ranges
from spark_sink.selection import Request, Selection, selection_of, selection_params
from tests.spark.generator import START_MS

EVERYTHING = 2**62
ALL = Selection()


@pytest.fixture
def busy(broker):
    broker.traffic(60)
    return broker


def rows_of(broker, table, columns=None, selection=ALL, tally=None):
    request = Request(table, 0, EVERYTHING, tuple(columns or all_columns(table)), selection)
    with LocalSource(broker.data_dir) as source:
        batches = list(source.read(request, tally or Tally()))
    return [row for batch in batches for row in batch.to_pylist()]


def test_messages_equal_the_ledger(busy):
    rows = rows_of(busy, "messages")
    ledger = busy.ledger.messages
    assert [row["id"] for row in rows] == sorted(ledger)
    for row in rows:
        sent = ledger[row["id"]]
        assert row["body"] == sent["body"]
        assert row["body_bytes"] == len(sent["body"])
        assert row["routing_key"] == sent["routing_key"]
        assert row["time"].timestamp() * 1000 == pytest.approx(sent["time_ms"], abs=0.5)
        for name in ("message_id", "delivery_mode", "priority", "timestamp", "app_id",
                     "content_type", "expiration", "reply_to", "type"):  # fmt: skip
            assert row[name] == sent.get(name), name
        assert row["user"] == ("alice", "bob")[row["id"] % 2]
        assert row["vhost"] == "/"


def test_headers_are_text_and_json(busy):
    for row in rows_of(busy, "messages", ["id", "headers"]):
        sent = busy.ledger.messages[row["id"]].get("headers")
        if sent is None:
            assert row["headers"] is None
        else:
            assert dict(row["headers"]) == {
                "n": str(sent["n"]), "who": "ünï", "deep": '{"a":[1,2]}'
            }  # fmt: skip


def test_events_equal_the_ledger(busy):
    rows = rows_of(busy, "events")
    assert Counter((row["queue"], row["event"]) for row in rows) == busy.ledger.events
    triples = {
        (row["queue"], row["event"], row["message"], round(row["time"].timestamp() * 1000))
        for row in rows
    }
    assert triples == busy.ledger.triples
    assert len({(row["event_id"], row["position"]) for row in rows}) == len(rows)
    assert {row["message"] for row in rows} == set(busy.ledger.messages)
    for row in rows:
        assert row["vhost"] == "/"
        assert row["redelivered"] == (row["event"] == "redelivered")
        assert row["detail"] == ("dlx" if row["event"] == "dead_lettered" else None)
        sized = row["event"] == "enqueued"
        body = busy.ledger.messages[row["message"]]["body"]
        assert row["body_bytes"] == (len(body) if sized else None)
        assert (row["consumer_tag"] == "ct") == (row["user"] == "carl")


def test_logs_equal_the_ledger(broker):
    for log in ("flat", "parted-0", "parted-1"):
        broker.append(log, 500)
    rows = rows_of(broker, "logs")
    names = {("flat", 0): "flat", ("parted", 0): "parted-0", ("parted", 1): "parted-1"}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(names[row["log"], row["partition"]], []).append(row)
    for log, sent in broker.ledger.logs.items():
        assert [row["offset"] for row in found[log]] == list(range(500))
        for row, (time_ms, properties, body) in zip(found[log], sent, strict=True):
            others = {k: str(v) for k, v in properties.items() if k != "headers"}
            headers = {k: str(v) for k, v in properties.get("headers", {}).items()}
            assert row["body"] == body and row["body_bytes"] == len(body)
            assert round(row["time"].timestamp() * 1000) == time_ms
            assert row["exchange"] == "ex" and row["routing_key"] == f"k{row['offset'] % 5}"
            assert dict(row["properties"]) == others
            assert dict(row["headers"] or []) == headers


def test_logs_can_be_read_in_parts(broker):
    broker.append("flat", 300)
    middle = broker.ledger.logs["flat"][150][0]
    with LocalSource(broker.data_dir) as source:
        ((queue_id, span),) = source.ranges(Selection()).logs.items()
        assert span == (0, 300)
        splits = source.splits(Request("logs", 0, EVERYTHING, ()), 70)
        assert [(s.from_id, s.to_id) for s in splits] == [
            (0, 70), (70, 140), (140, 210), (210, 280), (280, 300)
        ]  # fmt: skip
        found = []
        for split in splits:
            request = Request("logs", split.from_id, split.to_id, ("offset",), queue_id=queue_id)
            for batch in source.read(request, Tally()):
                found += batch.column(0).to_pylist()
        assert found == list(range(300))
    late = rows_of(broker, "logs", ["offset"], Selection(since_ms=middle))
    early = rows_of(broker, "logs", ["offset"], Selection(until_ms=middle))
    assert [row["offset"] for row in early + late] == list(range(300)) and len(late) == 150
    assert rows_of(broker, "logs", ["offset"], Selection(queues=("other",))) == []


def test_counts_agree_with_rows(busy):
    with LocalSource(busy.data_dir) as source:
        events = source.count(Request("events", 0, EVERYTHING, ()))
        messages = source.count(Request("messages", 0, EVERYTHING, ()))
        in_orders = source.count(
            Request("messages", 0, EVERYTHING, (), Selection(queues=("orders",)))
        )
    assert events["rows"] == busy.ledger.event_rows
    assert {(g["queue"], g["event"]): g["rows"] for g in events["groups"]} == busy.ledger.events
    assert messages["rows"] == len(busy.ledger.messages)
    assert messages["bytes"] == busy.ledger.body_bytes
    firsts = {group["queue"]: group["rows"] for group in messages["groups"]}
    assert firsts == Counter((busy.ledger.queues_of(m) or [None])[0] for m in busy.ledger.messages)
    assert in_orders["rows"] == busy.ledger.events["orders", "enqueued"]
    assert sum(group["rows"] for group in in_orders["groups"]) == in_orders["rows"]


def test_bodies_are_not_read_unless_asked_for(busy):
    with_bodies, without = Tally(), Tally()
    rows_of(busy, "messages", ["id", "body"], tally=with_bodies)
    rows_of(busy, "messages", ["id", "time", "user"], tally=without)
    assert "body" in with_bodies.columns and with_bodies.bytes == busy.ledger.body_bytes
    assert without.columns == ("id", "origin", "time_ms") and without.bytes == 0


def test_filters_reach_the_database(busy):
    tally = Tally()
    half = START_MS + (busy.time_ms - START_MS) // 2
    chosen = Selection(since_ms=half, queues=("orders",), kinds=("acked", "rejected"))
    rows = rows_of(busy, "events", selection=chosen, tally=tally)
    wanted = {
        triple for triple in busy.ledger.triples
        if triple[0] == "orders" and triple[1] in chosen.kinds and triple[3] >= half
    }  # fmt: skip
    assert {(r["queue"], r["event"], r["message"]) for r in rows} == {t[:3] for t in wanted}
    whole = Tally()
    rows_of(busy, "events", tally=whole)
    assert tally.scanned < whole.scanned / 4


def test_messages_of_a_queue(busy):
    rows = rows_of(busy, "messages", ["id"], Selection(queues=("123",)))
    wanted = {t[2] for t in busy.ledger.triples if t[:2] == ("123", "enqueued")}
    assert {row["id"] for row in rows} == wanted


def test_other_vhosts_stay_unseen(busy):
    for table in ("messages", "events", "queues"):
        assert rows_of(busy, table, selection=Selection(vhosts=("other",))) == []
        assert len(rows_of(busy, table, selection=Selection(vhosts=("/",)))) == len(
            rows_of(busy, table)
        )
        assert rows_of(busy, table, selection=Selection().within(frozenset())) == []


def test_messages_of_the_broker_itself_have_the_vhost_of_their_queue(broker):
    for queue in ("orders", "mail"):
        broker.publish([queue], b"first")
    broker.commit()
    with broker.engine.begin() as connection:
        connection.execute(update(schema.messages).values(origin=0))
        connection.execute(update(schema.events).values(actor=0))
        connection.execute(
            update(schema.queues).where(schema.queues.c.name == "mail").values(vhost="other")
        )
    rows = rows_of(broker, "messages", ["id", "vhost", "user"])
    assert [(row["vhost"], row["user"]) for row in rows] == [("/", None), ("other", None)]
    only = Selection(vhosts=("other",))
    assert [row["id"] for row in rows_of(broker, "messages", ["id"], only)] == [2]
    events = {(row["message"], row["event"], row["vhost"]) for row in rows_of(broker, "events")}
    assert events == {
        (1, "published", "/"), (1, "enqueued", "/"),
        (2, "published", "other"), (2, "enqueued", "other"),
    }  # fmt: skip
    assert [row["message"] for row in rows_of(broker, "events", ["message"], only)] == [2, 2]
    with LocalSource(broker.data_dir) as source:
        assert source.count(Request("messages", 0, EVERYTHING, (), only))["rows"] == 1
        counted = source.count(Request("events", 0, EVERYTHING, (), only))
    assert counted["rows"] == 2
    assert {(group["vhost"], group["event"]) for group in counted["groups"]} == {
        ("other", "published"), ("other", "enqueued")
    }  # fmt: skip


def test_unroutable_messages_of_the_broker_itself_have_their_vhost(broker):
    broker.publish([], b"nobody wants it")
    broker.commit()
    with broker.engine.begin() as connection:
        connection.execute(update(schema.messages).values(origin=0))
        connection.execute(update(schema.events).values(actor=0, detail="other"))
    assert [row["vhost"] for row in rows_of(broker, "messages")] == ["other"]
    assert {row["vhost"] for row in rows_of(broker, "events")} == {"other"}
    assert rows_of(broker, "events", selection=Selection(vhosts=("/",))) == []


def test_history_off_hides_events_and_content(broker):
    broker.publish(["orders", "mail"], b"kept")
    broker.commit()
    with broker.engine.begin() as connection:
        connection.execute(
            insert(schema.policies),
            {"vhost": "/", "name": "quiet", "pattern": "^mail$", "operator": False,
             "definition": '{"history": "off"}'},
        )  # fmt: skip
        connection.execute(
            insert(schema.messages),
            {"id": 99, "keep": 0, "properties": b"\0\0", "body": b"secret", "size": 6},
        )
    assert {row["queue"] for row in rows_of(broker, "events")} == {"orders", None}
    with broker.engine.begin() as connection:
        connection.execute(insert(schema.meta), {"key": "history", "value": "off"})
    assert {row["queue"] for row in rows_of(broker, "events")} == {None}
    with broker.engine.begin() as connection:
        connection.execute(
            insert(schema.policies),
            {"vhost": "/", "name": "all", "pattern": "", "operator": True,
             "definition": '{"history": "full"}'},
        )  # fmt: skip
    assert {row["queue"] for row in rows_of(broker, "events")} == {"orders", "mail", None}
    assert [row["body"] for row in rows_of(broker, "messages")] == [b"kept"]


def test_body_that_was_not_kept_is_null(broker):
    broker.publish(["orders"], b"12345")
    broker.commit()
    with broker.engine.begin() as connection:
        connection.execute(update(schema.messages).values(body=None, keep=1))
    (row,) = rows_of(broker, "messages")
    assert row["body"] is None and row["body_bytes"] == 5


def test_empty_broker_has_empty_tables(broker):
    for table in ("messages", "events"):
        assert rows_of(broker, table) == []
    with LocalSource(broker.data_dir) as source:
        assert source.ranges(Selection()).messages == (0, 0)
        assert source.count(Request("events", 0, EVERYTHING, ()))["rows"] == 0


def test_large_bodies_are_cut_into_small_batches(broker):
    for _ in range(6):
        broker.publish(["orders"], b"x" * 5_000_000)
    broker.commit()
    with LocalSource(broker.data_dir) as source:
        sizes = [
            batch.num_rows
            for batch in source.read(Request("messages", 0, 100, ("id", "body")), Tally())
        ]
    assert sum(sizes) == 6 and max(sizes) == 1


def test_a_purge_of_many_is_cut_into_batches(broker):
    for number in range(1, 150_001):
        broker._events.setdefault((EventKind.PURGED, 1, 0, None), []).append((number, 0))
    broker.commit()
    with LocalSource(broker.data_dir) as source:
        batches = list(source.read(Request("events", 0, 100, ("message", "position")), Tally()))
    assert [batch.num_rows for batch in batches] == [65_536, 65_536, 18_928]
    assert pa.Table.from_batches(batches)["message"].to_pylist() == list(range(1, 150_001))


@pytest.mark.parametrize("rows", [1, 7, 50, 10_000])
@pytest.mark.parametrize("table", ["messages", "events"])
def test_splits_cover_everything_once(busy, table, rows):
    with LocalSource(busy.data_dir) as source:
        first, following = source.ranges(Selection()).of(table)["next"]
        splits = source.splits(Request(table, first, following, ()), rows)
        ends = [split.to_id for split in splits]
        assert all(a.to_id <= b.from_id for a, b in pairwise(splits))
        assert ends[-1] == following
        found = 0
        for split in splits:
            request = Request(table, split.from_id, split.to_id, all_columns(table))
            count = sum(batch.num_rows for batch in source.read(request, Tally()))
            assert count <= split.rows
            if table == "messages":
                assert split.rows <= rows
            found += count
    expected = len(busy.ledger.messages) if table == "messages" else busy.ledger.event_rows
    assert found == expected


def test_reads_beside_an_open_writer(busy):
    """An open write transaction neither blocks the reader nor shows in it."""
    before = len(rows_of(busy, "messages", ["id"]))
    with busy.engine.begin() as connection:
        connection.execute(
            insert(schema.messages), {"id": 10_000, "keep": 2, "properties": b"\0\0", "body": b""}
        )
        assert len(rows_of(busy, "messages", ["id"])) == before
    assert len(rows_of(busy, "messages", ["id"])) == before + 1


def test_answer_export_is_an_arrow_stream(busy):
    params = Request("events", 0, EVERYTHING, ("event", "message")).to_params()
    data = b"".join(answer_export(busy.data_dir, params))
    table = pa.ipc.open_stream(io.BytesIO(data)).read_all()
    assert table.column_names == ["event", "message"]
    assert table.num_rows == busy.ledger.event_rows
    empty = b"".join(answer_export(busy.data_dir, params, vhosts=frozenset()))
    assert pa.ipc.open_stream(io.BytesIO(empty)).read_all().num_rows == 0


def test_answer_ranges(busy):
    answer = answer_ranges(busy.data_dir, {})
    assert answer["messages"] == (1, max(busy.ledger.messages) + 1)
    assert answer["identity"] == "created_ms=1"
    params = {"table": "events", "rows": "100", "limit": "2", "count": "1"}
    answer = answer_ranges(busy.data_dir, params)
    assert len(answer["splits"]) == 2
    assert answer["count"]["rows"] == busy.ledger.event_rows


def test_selections_survive_the_way_over_text():
    chosen = Selection(1, 2, ("a,b",), ("/", "v\xe9"), ("acked",))
    assert selection_of(selection_params(chosen)) == chosen
    assert selection_of({"queue": "a, b"}).queues == ("a", "b")
    assert selection_of({"since": "2026-11-16"}).since_ms == 1_794_787_200_000


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"table": "nope"}, "no table 'nope'"),
        ({"table": "events", "columns": "color"}, "no column 'color'"),
        ({"table": "events", "from_id": "x"}, "whole number"),
        ({"table": "events", "since": "yesterday"}, "no time"),
        ({"table": "events", "kind": "eaten", "check": "1"}, "no event 'eaten'"),
        ({"queue": "gone", "check": "1"}, "no queue 'gone'"),
    ],
)
def test_bad_requests_are_sentences(busy, params, words):
    with pytest.raises(SourceError, match=words):
        answer_ranges(busy.data_dir, params)


def test_unreadable_directories_are_sentences(tmp_path):
    with pytest.raises(SourceError, match="give the data directory of a broker"):
        LocalSource(tmp_path)
    (tmp_path / "leveret.db").write_bytes(b"not a database at all, just some bytes in a file")
    with pytest.raises(SourceError, match="no database of a broker"):
        LocalSource(tmp_path)
