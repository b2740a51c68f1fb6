"""The Arrow readers against the ledger, without Spark."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import insert, update

from leveret.model.history import EventKind, Keep
from leveret.model.message import PARTS_FROM, Address, Message, encode_properties
from leveret.model.run import Run
from leveret.queues.storage import schema
from leveret.queues.storage.packs import encode_packs
from leveret.spark_sink.arrow.local import LocalSource, history_export, history_ranges
from leveret.spark_sink.arrow.schemas import schema_of
from leveret.spark_sink.arrow.selection import (
    Request,
    Selection,
    parse_selection,
    selection_to_params,
)
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.errors import SourceError
from tests.spark.generator import START_MS

EVERYTHING = 2**62
ROOT = Path(__file__).parents[2]
ALL = Selection()


@pytest.fixture
def busy(broker):
    broker.traffic(60, is_varied=True)
    return broker


def rows_of(broker, table, columns=None, selection=ALL, stats=None):
    request = Request(
        table, 0, EVERYTHING, tuple(columns or schema_of(table).column_names), selection
    )
    with LocalSource(broker.data_dir) as source:
        batches = list(source.read(request, stats or ReadStats()))
    return [row for batch in batches for row in batch.to_pylist()]


def test_messages_equal_the_ledger(busy):
    rows = rows_of(busy, "messages")
    ledger = busy.ledger.messages
    assert [row["id"] for row in rows] == sorted(ledger)
    for row in rows:
        sent = ledger[row["id"]]
        assert row["body"] == sent["stored_body"]
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
                "n": str(sent["n"]), "name": "ünï", "deep": '{"a":[1,2]}'
            }  # fmt: skip


def test_typed_headers_keep_types_and_bytes(broker):
    """Every wire type, as clients encode it."""
    wire = bytearray()

    def field(name: str, kind: bytes, value: bytes) -> None:
        wire.extend(bytes([len(name)]) + name.encode() + kind + value)

    def sized(value: bytes) -> bytes:
        return len(value).to_bytes(4, "big") + value

    field("text", b"S", sized("ünï".encode()))
    field("digits", b"S", sized(b"5"))
    field("latin", b"S", sized(b"\xff\xfe"))
    field("blob", b"x", sized(b"\x00\xff"))
    for name, kind, width in (
        ("byte", b"b", 1), ("unsignedbyte", b"B", 1), ("short", b"s", 2),
        ("unsignedshort", b"u", 2), ("signedint", b"I", 4), ("unsignedint", b"i", 4),
        ("long", b"l", 8),
    ):  # fmt: skip
        field(name, kind, (5).to_bytes(width, "big"))
    field("float", b"f", struct.pack(">f", 0.5))
    field("double", b"d", struct.pack(">d", 0.1))
    field("decimal", b"D", b"\x02" + (123).to_bytes(4, "big"))
    field("time", b"T", (1_700_000_000).to_bytes(8, "big"))
    field("yes", b"t", b"\x01")
    field("nothing", b"V", b"")
    field("list", b"A", sized(b"I" + (1).to_bytes(4, "big") + b"x" + sized(b"\xff")))
    field("deep", b"F", sized(b"\x01a" + b"b" + b"\x07" + b"\x01s" + b"S" + sized(b"x")))
    properties = (1 << 13).to_bytes(2, "big") + sized(bytes(wire))
    broker.publish(["orders"], b"x", encoded=properties)
    broker.commit()
    (row,) = rows_of(broker, "messages", ["typed_headers"])
    fields = {name: tuple(value.values()) for name, value in row["typed_headers"]}
    numbers = {
        name: (name, "5", None)
        for name in ("byte", "unsignedbyte", "short", "unsignedshort", "signedint", "unsignedint",
                     "long")
    }  # fmt: skip
    assert fields == numbers | {
        "text": ("longstr", "ünï", "ünï".encode()),
        "digits": ("longstr", "5", b"5"),
        "latin": ("longstr", None, b"\xff\xfe"),
        "blob": ("binary", None, b"\x00\xff"),
        "float": ("float", "0.5", None),
        "double": ("double", "0.1", None),
        "decimal": ("decimal", "1.23", None),
        "time": ("timestamp", "1700000000", None),
        "yes": ("bool", "true", None),
        "nothing": ("void", None, None),
        "list": ("array", '[{"type":"signedint","value":1},{"type":"binary","base64":"/w=="}]',
                 None),
        "deep": ("table", '{"a":{"type":"byte","value":7},"s":{"type":"longstr","value":"x"}}',
                 None),
    }  # fmt: skip


def test_messages_without_headers_have_no_typed_headers(broker):
    broker.publish(["orders"], b"x")
    broker.publish(["orders"], b"x", headers={})
    broker.commit()
    rows = rows_of(broker, "messages", ["typed_headers", "headers"])
    assert [row["typed_headers"] for row in rows] == [row["headers"] for row in rows] == [None, []]


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
    by_log: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_log.setdefault(names[row["log"], row["partition"]], []).append(row)
    for log, sent in broker.ledger.logs.items():
        assert [row["offset"] for row in by_log[log]] == list(range(500))
        for row, (time_ms, properties, body) in zip(by_log[log], sent, strict=True):
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
        offsets = []
        for split in splits:
            request = Request("logs", split.from_id, split.to_id, ("offset",), queue_id=queue_id)
            for batch in source.read(request, ReadStats()):
                offsets += batch.column(0).to_pylist()
        assert offsets == list(range(300))
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


def test_bodies_are_read_only_when_requested(busy):
    with_bodies, without = ReadStats(), ReadStats()
    rows_of(busy, "messages", ["id", "body"], stats=with_bodies)
    rows_of(busy, "messages", ["id", "time", "user"], stats=without)
    kept = sum(len(sent["stored_body"] or b"") for sent in busy.ledger.messages.values())
    assert "body" in with_bodies.columns and with_bodies.bytes > kept
    assert without.columns == ("id", "runs") and without.bytes == 0


def test_filters_reach_the_database(busy):
    stats = ReadStats()
    half = START_MS + (busy.time_ms - START_MS) // 2
    chosen = Selection(since_ms=half, queues=("orders",), kinds=("acked", "rejected"))
    rows = rows_of(busy, "events", selection=chosen, stats=stats)
    expected = {
        triple for triple in busy.ledger.triples
        if triple[0] == "orders" and triple[1] in chosen.kinds and triple[3] >= half
    }  # fmt: skip
    assert {(r["queue"], r["event"], r["message"]) for r in rows} == {t[:3] for t in expected}
    whole = ReadStats()
    rows_of(busy, "events", stats=whole)
    assert stats.scanned < whole.scanned / 4


def test_messages_of_a_queue(busy):
    rows = rows_of(busy, "messages", ["id"], Selection(queues=("123",)))
    expected = {t[2] for t in busy.ledger.triples if t[:2] == ("123", "enqueued")}
    assert {row["id"] for row in rows} == expected


def test_other_vhosts_are_not_visible(busy):
    for table in ("messages", "events", "queues"):
        assert rows_of(busy, table, selection=Selection(vhosts=("other",))) == []
        assert len(rows_of(busy, table, selection=Selection(vhosts=("/",)))) == len(
            rows_of(busy, table)
        )
        assert rows_of(busy, table, selection=Selection().within(frozenset())) == []


def test_messages_published_by_the_broker_have_the_vhost_of_their_queue(broker):
    for queue in ("orders", "mail"):
        broker.publish([queue], b"first", origin=0)
    broker.commit()
    with broker.engine.begin() as connection:
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


def test_unroutable_messages_published_by_the_broker_have_a_vhost(broker):
    broker.publish([], b"unroutable", origin=0)
    broker.commit()
    with broker.engine.begin() as connection:
        connection.execute(update(schema.events).values(actor=0, detail="other"))
    assert [row["vhost"] for row in rows_of(broker, "messages")] == ["other"]
    assert {row["vhost"] for row in rows_of(broker, "events")} == {"other"}
    assert rows_of(broker, "events", selection=Selection(vhosts=("/",))) == []


def test_history_off_hides_events_and_content(broker):
    broker.publish(["orders", "mail"], b"kept")
    broker.commit()
    broker.publish([], b"secret", keep=Keep.NOTHING)
    broker.commit()
    with broker.engine.begin() as connection:
        connection.execute(
            insert(schema.policies),
            {"vhost": "/", "name": "quiet", "pattern": "^mail$", "operator": False,
             "definition": '{"history": "off"}'},
        )  # fmt: skip
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


def test_body_that_is_not_kept_is_null(broker):
    broker.publish(["orders"], b"12345", keep=Keep.METADATA, is_stripped=True)
    broker.commit()
    (row,) = rows_of(broker, "messages")
    assert row["body"] is None and row["body_bytes"] == 5


def test_body_in_parts_is_read_whole(broker):
    body = bytes(range(256)) * (PARTS_FROM // 256) + b"rest"
    sent = [body, b"small", body[::-1], b"small"]
    for one in sent:
        broker.publish(["orders"], one)
    broker.commit()
    assert [row["body"] for row in rows_of(broker, "messages")] == sent
    rows = rows_of(broker, "messages", ["body_bytes", "delivery_mode"])
    assert [row["body_bytes"] for row in rows] == [len(one) for one in sent]


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
            for batch in source.read(Request("messages", 0, 100, ("id", "body")), ReadStats())
        ]
    assert sum(sizes) == 6 and max(sizes) == 1


def test_purge_of_many_messages_is_cut_into_batches(broker):
    for number in range(1, 150_001):
        broker._events.setdefault((EventKind.PURGED, 1, 0, None), []).append((number, 0))
    broker.commit()
    with LocalSource(broker.data_dir) as source:
        batches = list(source.read(Request("events", 0, 100, ("message", "position")), ReadStats()))
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
        total = 0
        for split in splits:
            request = Request(table, split.from_id, split.to_id, schema_of(table).column_names)
            count = sum(batch.num_rows for batch in source.read(request, ReadStats()))
            assert count <= split.rows
            if table == "messages":
                assert split.rows <= rows
            total += count
    expected = len(busy.ledger.messages) if table == "messages" else busy.ledger.event_rows
    assert total == expected


def test_reads_while_a_write_transaction_is_open(busy):
    """An open write transaction neither blocks the reader nor is visible to it."""
    before = len(rows_of(busy, "messages", ["id"]))
    message = Message.build(Address.of("", "orders"), encode_properties({}), b"")
    message.id, message.keep = 10_000, Keep.FULL
    with busy.engine.begin() as connection:
        (row,) = encode_packs([Run.of([message])])
        connection.execute(insert(schema.message_packs).values(row))
        assert len(rows_of(busy, "messages", ["id"])) == before
    assert len(rows_of(busy, "messages", ["id"])) == before + 1


def test_history_export_is_an_arrow_stream(busy):
    params = Request("events", 0, EVERYTHING, ("event", "message")).to_params()
    data = b"".join(history_export(busy.data_dir, params))
    table = pa.ipc.open_stream(io.BytesIO(data)).read_all()
    assert table.column_names == ["event", "message"]
    assert table.num_rows == busy.ledger.event_rows
    empty = b"".join(history_export(busy.data_dir, params, vhosts=frozenset()))
    assert pa.ipc.open_stream(io.BytesIO(empty)).read_all().num_rows == 0


def test_history_ranges(busy):
    answer = history_ranges(busy.data_dir, {})
    assert answer["messages"] == (1, max(busy.ledger.messages) + 1)
    assert answer["identity"] == "created_ms=1"
    params = {"table": "events", "rows": "100", "limit": "2", "count": "1"}
    answer = history_ranges(busy.data_dir, params)
    assert len(answer["splits"]) == 2
    assert answer["count"]["rows"] == busy.ledger.event_rows


def test_selections_round_trip_through_text():
    chosen = Selection(1, 2, ("a,b",), ("/", "v\xe9"), ("acked",))
    assert parse_selection(selection_to_params(chosen)) == chosen
    assert parse_selection({"queue": "a, b"}).queues == ("a", "b")
    assert parse_selection({"since": "2026-11-16"}).since_ms == 1_794_787_200_000


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"table": "nope"}, "no table 'nope'"),
        ({"table": "events", "columns": "color"}, "no column 'color'"),
        ({"table": "events", "from_id": "x"}, "whole number"),
        ({"table": "events", "since": "yesterday"}, "not a time"),
        ({"table": "events", "kind": "eaten", "check": "1"}, "no event 'eaten'"),
        ({"queue": "gone", "check": "1"}, "no queue 'gone'"),
    ],
)
def test_bad_requests_are_explained(busy, params, words):
    with pytest.raises(SourceError, match=words):
        history_ranges(busy.data_dir, params)


def test_importing_the_readers_imports_no_spark():
    modules = ", ".join(f"leveret.spark_sink.arrow.{name}" for name in (
        "local", "remote", "source", "tables.events", "tables.logs", "tables.messages",
        "tables.queues",
    ))  # fmt: skip
    code = (
        f"import sys, leveret.spark_sink.export, {modules}\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'pyspark', 'py4j'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"


def test_unreadable_directories_are_explained(tmp_path):
    with pytest.raises(SourceError, match="give the data directory of a broker"):
        LocalSource(tmp_path)
    (tmp_path / "leveret.db").write_bytes(b"not a database at all, just some bytes in a file")
    with pytest.raises(SourceError, match="not the database of a broker"):
        LocalSource(tmp_path)


@pytest.mark.parametrize(("version", "words"), [(3, "start the broker"), (99, "update this one")])
def test_other_versions_of_the_database_are_explained(broker, version, words):
    with broker.engine.begin() as connection:
        row = {"key": "schema_version", "value": str(version)}
        connection.execute(insert(schema.meta), row)
    with pytest.raises(SourceError, match=words):
        LocalSource(broker.data_dir)
