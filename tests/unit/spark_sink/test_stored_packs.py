"""The table `messages` out of packs, against a model that knows each single message."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.model.history import Keep
from leveret.model.message import PART_BYTES, Address, LargeBody, Message, encode_properties
from leveret.model.run import Run
from leveret.queues.storage import schema
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.packs import Pack, PackRow, encode_packs
from leveret.spark_sink.arrow import chunking
from leveret.spark_sink.arrow.local import LocalSource
from leveret.spark_sink.arrow.selection import Request, Selection
from leveret.spark_sink.arrow.source import ReadStats
from leveret.spark_sink.errors import SourceError
from tests.spark.generator import data_in_parts

SCHEMA = schema.compiled()
VHOSTS = {1: "/", 2: "other"}
COLUMNS = ("id", "time", "vhost", "user", "exchange", "routing_key", "message_id", "priority",
           "headers", "body", "body_bytes")  # fmt: skip
EVERYTHING, ALL = (0, 2**62), Selection()


@dataclass(frozen=True)
class Sent:
    """A message; `skipped` ids before its own are not used, and it may be the last of its pack."""

    skipped: int = 0
    time_ms: int = 1_000
    origin: int = 1
    exchange: str = "ex"
    routing_key: str = "key"
    message_id: str | None = None
    priority: int | None = None
    headers: tuple[str, ...] = ()
    body: bytes = b"body"
    keep: Keep = Keep.FULL
    is_stripped: bool = False
    ends_pack: bool = False

    def properties(self) -> dict[str, Any]:
        headers = {name: name for name in self.headers} or None
        return {"message_id": self.message_id, "priority": self.priority, "headers": headers}

    def row(self, number: int) -> dict[str, Any]:
        """The expected row, with the time as a number."""
        return {
            "id": number, "time": self.time_ms, "vhost": VHOSTS.get(self.origin),
            "user": f"user{self.origin}" if self.origin else None, "exchange": self.exchange,
            "routing_key": self.routing_key, "message_id": self.message_id,
            "priority": self.priority,
            "headers": [(name, name) for name in self.headers] or None,
            "body": None if self.is_stripped and self.body else self.body,
            "body_bytes": len(self.body),
        }  # fmt: skip


def message_of(sent: Sent, number: int, *, is_large: bool = False) -> Message:
    body = LargeBody([sent.body]) if is_large else sent.body
    address = Address.of(sent.exchange, sent.routing_key)
    message = Message.build(address, encode_properties(sent.properties()), body)
    message.id, message.time_ms = number, sent.time_ms
    message.origin, message.keep = sent.origin, sent.keep
    return message


class Database:
    """A data directory with packs; large bodies and whole packs can be stored in parts."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.messages: dict[int, Sent] = {}
        self._last, self._part = 0, 6
        self._connection = sqlite3.connect(self.directory / DATABASE_NAME, isolation_level=None)
        self._connection.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {SCHEMA}")
        self.execute("INSERT INTO body_parts VALUES (6, x'00')")
        for number, vhost in VHOSTS.items():
            self.execute(
                "INSERT INTO origins (id, kind, vhost, user) VALUES (?, 1, ?, ?)",
                (number, vhost, f"user{number}"),
            )

    def close(self) -> None:
        self._connection.close()

    def execute(self, sql: str, values: Any = ()) -> None:
        self._connection.execute(sql, values)

    def change(self, column: str, function: Callable[[Any], Any]) -> None:
        """Change a column of the last pack."""
        last = "FROM message_packs ORDER BY id DESC LIMIT 1"
        number, value = self._connection.execute(f"SELECT id, {column} {last}").fetchone()
        changed = f"UPDATE message_packs SET {column} = ? WHERE id = ?"
        self.execute(changed, (function(value), number))

    def add(self, sent: list[Sent], *, is_large: bool = False, in_parts: bool = False) -> None:
        """One batch. `is_large`: each body is stored in parts; `in_parts`: each pack is."""
        for pack in self._packs(sent, is_large):
            row = pack
            if in_parts and not row.parts:
                row, pieces = data_in_parts(row, self._part + 1)
                self._add_parts(pieces)
            self.execute(f"INSERT INTO message_packs VALUES ({','.join('?' * len(row))})", row)

    def _packs(self, sent: list[Sent], is_large: bool) -> Iterator[PackRow]:
        numbered: list[tuple[int, Sent]] = []
        for one in sent:
            number = self._last + 1 + one.skipped
            self.messages[number], self._last = one, number
            numbered.append((number, one))
            if one.ends_pack:
                yield from self._encoded(numbered, is_large)
                numbered = []
        yield from self._encoded(numbered, is_large)

    def _encoded(self, numbered: list[tuple[int, Sent]], is_large: bool) -> Iterator[PackRow]:
        runs: list[Run] = []
        for _, group in groupby(numbered, lambda each: None if is_large else _head(each[1])):
            messages = [
                message_of(one, number, is_large=is_large and len(one.body) > 0)
                for number, one in group
            ]
            for message in messages:
                if message.large_body is not None and not self.messages[message.id].is_stripped:
                    message.large_body.first_part = self._part + 1
                    self._add_parts(message.large_body.parts())
            runs += [Run.of([one]) for one in messages] if is_large else [Run.of(messages)]
        for row in encode_packs(runs):
            stripped = Pack(row).without_bodies(
                lambda number: not self.messages[number].is_stripped
            )
            yield row if row.parts else stripped or row

    def _add_parts(self, pieces: Any) -> None:
        for piece in pieces:
            self._part += 1
            self.execute("INSERT INTO body_parts VALUES (?, ?)", (self._part, piece))

    def expected(
        self, span: tuple[int, int] = EVERYTHING, selection: Selection = ALL
    ) -> list[dict[str, Any]]:
        return [
            sent.row(number)
            for number, sent in self.messages.items()
            if span[0] <= number < span[1] and _is_selected(sent, selection)
        ]

    def read(
        self,
        span: tuple[int, int] = EVERYTHING,
        selection: Selection = ALL,
        columns: tuple[str, ...] = COLUMNS,
        stats: ReadStats | None = None,
    ) -> list[dict[str, Any]]:
        with LocalSource(self.directory) as source:
            request = Request("messages", *span, columns, selection)
            batches = list(source.read(request, stats or ReadStats()))
        for batch in batches:
            batch.validate(full=True)
        rows = [row for batch in batches for row in batch.to_pylist()]
        return [
            row | ({"time": round(row["time"].timestamp() * 1000)} if "time" in row else {})
            for row in rows
        ]


def _head(sent: Sent) -> tuple[Any, ...]:
    return sent.time_ms, sent.origin, sent.exchange, sent.routing_key, sent.keep


def _is_selected(sent: Sent, selection: Selection) -> bool:
    since, until = selection.since_ms, selection.until_ms
    return (
        sent.keep is not Keep.NOTHING
        and (since is None or sent.time_ms >= since)
        and (until is None or sent.time_ms < until)
        and (not selection.vhosts or VHOSTS.get(sent.origin) in selection.vhosts)
    )


@pytest.fixture
def database(tmp_path):
    with closing(Database(tmp_path)) as database:
        yield database


texts = st.sampled_from(["", "a", "ünï", "x" * 100])
times = st.integers(995, 1_005)
kept = st.sampled_from([Keep.FULL, Keep.FULL, Keep.FULL, Keep.METADATA, Keep.NOTHING])
sent_messages = st.builds(
    Sent,
    skipped=st.sampled_from([0, 0, 0, 0, 0, 1, 5]),
    time_ms=times,
    origin=st.sampled_from([0, 1, 1, 2]),
    exchange=texts,
    routing_key=texts,
    message_id=st.none() | texts,
    priority=st.none() | st.integers(0, 255),
    headers=st.sampled_from([(), ("a",), ("a", "ünï")]),
    body=st.binary(max_size=40) | st.just(b"x" * 3_000),
    keep=kept,
    is_stripped=st.booleans(),
    ends_pack=st.sampled_from([False, False, False, True]),
)
batches = st.lists(
    st.tuples(st.lists(sent_messages, min_size=1, max_size=12), st.booleans(), st.booleans()),
    max_size=6,
)
spans = st.tuples(st.integers(0, 20), st.integers(0, 40) | st.just(2**62))
selections = st.builds(
    Selection,
    since_ms=st.none() | times,
    until_ms=st.none() | times,
    vhosts=st.sampled_from([(), ("/",), ("other", "/"), ("none",)]),
)
columns = st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True).map(tuple)


@contextmanager
def read_in_small_chunks() -> Iterator[Database]:
    """A database that is read in small chunks."""
    with (
        TemporaryDirectory() as directory,
        closing(Database(directory)) as database,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(chunking, "CHUNK_ROWS", 5)
        patch.setattr(chunking, "CHUNK_BYTES", 10 * 1024)
        yield database


@given(batches, spans, selections, columns)
@settings(max_examples=200)
def test_rows_counts_and_splits_equal_the_model(batches, span, selection, columns):
    with read_in_small_chunks() as database:
        for sent, is_large, in_parts in batches:
            database.add(sent, is_large=is_large, in_parts=in_parts)
        expected = database.expected(span, selection)
        rows = database.read(span, selection, columns)
        assert rows == [{name: row[name] for name in columns} for row in expected]
        with LocalSource(database.directory) as source:
            counted = source.count(Request("messages", span[0], span[1], (), selection))
            splits = source.splits(Request("messages", span[0], span[1], ()), 7)
        assert counted["rows"] == sum(group["rows"] for group in counted["groups"]) == len(expected)
        assert counted["bytes"] == sum(row["body_bytes"] for row in expected)
        parts = (database.read((each.from_id, each.to_id), columns=("id",)) for each in splits)
        assert list(chain.from_iterable(parts)) == [
            {"id": row["id"]} for row in database.expected(span)
        ]
        assert all(each.from_id in database.messages for each in splits)


def test_range_cuts_the_first_and_the_last_pack(database):
    database.add([Sent(body=bytes([at])) for at in range(20)])
    database.add([Sent(skipped=1, body=bytes([at])) for at in range(20)])
    for span in ((1, 21), (5, 6), (6, 31), (21, 23), (22, 24), (60, 61), (61, 90)):
        expected = database.expected(span)
        assert database.read(span) == expected
        with LocalSource(database.directory) as source:
            counted = source.count(Request("messages", span[0], span[1], ()))
        assert (counted["rows"], counted["bytes"]) == (len(expected), len(expected))


def test_pack_is_cut_by_time(database):
    database.add([Sent(time_ms=1_000 + at // 3, body=bytes([at])) for at in range(20)])
    for chosen in (Selection(1_002), Selection(None, 1_002), Selection(1_001, 1_004)):
        rows = database.read(selection=chosen)
        assert 0 < len(rows) < 20 and rows == database.expected(selection=chosen)


def test_content_is_read_only_of_packs_with_selected_messages(database):
    for at in range(4):
        database.add([Sent(time_ms=1_000 + at, origin=1 + at % 2, body=b"x" * 500)] * 10)
    everything, one, half = ReadStats(), ReadStats(), ReadStats()
    database.read(stats=everything)
    assert len(database.read(selection=Selection(1_003), stats=one)) == 10
    assert len(database.read(selection=Selection(vhosts=("other",)), stats=half)) == 20
    assert everything.bytes == 4 * one.bytes == 2 * half.bytes > 20_000


def test_sizes_of_large_messages_are_known_without_their_content(database):
    database.add([Sent(body=b"x" * 70_000), Sent(body=b"y" * 70_000), Sent(body=b"")])
    stats = ReadStats()
    rows = database.read(columns=("body_bytes", "routing_key"), stats=stats)
    assert [row["body_bytes"] for row in rows] == [70_000, 70_000, 0]
    assert stats.bytes == 0


def test_memory_is_bounded_by_chunks_of_packs(database):
    database.add([Sent(body=b"x" * 30_000)] * 600)
    stats = ReadStats()
    assert len(database.read(stats=stats)) == 600
    assert stats.queries >= 600 * 30_000 / chunking.CHUNK_BYTES
    database.add([Sent(body=b"")] * 20_000)
    stats = ReadStats()
    assert len(database.read((601, 2**62), columns=("id",), stats=stats)) == 20_000
    assert stats.queries >= 20_000 / chunking.CHUNK_ROWS


def test_invalid_utf8_in_a_routing_key_is_replaced(database):
    database.add([Sent(routing_key="??"), Sent(routing_key="fine")])
    database.change("runs", lambda runs: runs.replace(b"??", b"\xff?"))
    assert [row["routing_key"] for row in database.read()] == ["\ufffd?", "fine"]


def test_every_large_body_has_its_own_parts(database):
    database.add([Sent(body=b"1" * 100), Sent(body=b""), Sent(body=b"22")], is_large=True)
    database.add([Sent(body=b"3" * 50), Sent(body=b"4")], in_parts=True)
    assert database.read() == database.expected()
    assert [row["body_bytes"] for row in database.read(columns=("body_bytes",))] == [
        100, 0, 2, 50, 1
    ]  # fmt: skip


def test_body_whose_parts_are_all_gone_is_null(database):
    database.add([Sent(body=b"x" * 100)], is_large=True)
    database.execute("DELETE FROM body_parts")
    assert [(row["body"], row["body_bytes"]) for row in database.read()] == [(None, 100)]


def resized(sizes: bytes) -> bytes:
    """One byte of the second message belongs to the first."""
    return bytes([sizes[0] + 1]) + sizes[1:4] + bytes([sizes[4] - 1]) + sizes[5:]


def shortened(data: bytes) -> bytes:
    """The header ends within its fixed part, and the body is longer by as much."""
    return data[:3] + (2).to_bytes(4, "big") + data[7:11] + (13).to_bytes(8, "big") + data[19:]


DAMAGE = {
    "no runs": ("runs", lambda runs: b""),
    "runs too short": ("runs", lambda runs: runs[:-1]),
    "runs too long": ("runs", lambda runs: runs + b"\0"),
    "too many runs": ("runs", lambda runs: runs + runs),
    "too few messages in a run": ("runs", lambda runs: b"\1" + runs[1:]),
    "runs of another file": ("runs", lambda runs: b"\xff" * len(runs)),
    "numbers of more than 63 bits": ("runs", lambda runs: runs[:4] + b"\xff" * 16 + runs[20:]),
    "no sizes": ("sizes", lambda sizes: b""),
    "sizes too short": ("sizes", lambda sizes: sizes[:-4]),
    "wrong sizes": ("sizes", resized),
    "sizes too large": ("sizes", lambda sizes: b"\xff" * len(sizes)),
    "sizes too small": ("sizes", lambda sizes: b"\0" * len(sizes)),
    "no ids": ("ids", lambda ids: None),
    "ids too short": ("ids", lambda ids: ids[:-8]),
    "ids that descend": ("ids", lambda ids: ids[:8] + ids[:7:-1]),
    "ids of another pack": ("ids", lambda ids: b"\0" * 8 + ids[8:]),
    "count is 0": ("count", lambda count: 0),
    "count too low": ("count", lambda count: count - 1),
    "count far too high": ("count", lambda count: 10**15),
    "no data": ("data", lambda data: None),
    "data too short": ("data", lambda data: data[:-1]),
    "data too long": ("data", lambda data: data + b"x"),
    "wrong length of a header": ("data", lambda data: data[:3] + b"\0\0\0\xff" + data[7:]),
    "header too short": ("data", lambda data: data[:3] + b"\0\0\0\2" + data[7:]),
    "header shorter than its fixed part": ("data", shortened),
    "wrong size of a body": ("data", lambda data: data[:18] + b"\x70" + data[19:]),
    "body of 2**63 bytes": ("data", lambda data: data[:11] + b"\xff" * 8 + data[19:]),
    "wrong properties": ("data", lambda data: data[:19] + b"\xff\xf0" + data[21:]),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_pack_is_reported(database, case):
    database.add([Sent(skipped=at % 2, body=b"x" * at) for at in (1, 2, 3, 4)])
    database.change(*DAMAGE[case])
    with pytest.raises(SourceError, match=r"the database file is damaged\.$"):
        database.read()


def test_data_that_is_longer_than_its_messages_is_damage(database):
    """It looks like the body of each of them in parts."""
    database.add([Sent(body=b"x", is_stripped=True)] * 2)
    database.change("data", lambda data: data + b"x")
    with pytest.raises(SourceError, match="content of message 1 cannot be read"):
        database.read()


def test_damage_beyond_the_range_is_not_noticed(database):
    database.add([Sent(ends_pack=True), Sent(), Sent(skipped=1)])
    database.change("data", lambda data: data[:-1])
    assert [row["id"] for row in database.read((1, 2))] == [1]
    with pytest.raises(SourceError, match="content of message 2 cannot be read"):
        database.read()


def test_missing_part_of_a_body_is_damage(database):
    database.add([Sent(body=b"x" * (PART_BYTES + 1))], is_large=True)
    database.execute("DELETE FROM body_parts WHERE id = 8")
    with pytest.raises(SourceError, match="content of message 1 cannot be read"):
        database.read()
    assert len(database.read(columns=("id", "message_id", "body_bytes"))) == 1
