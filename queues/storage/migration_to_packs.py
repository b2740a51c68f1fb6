"""The migration to schema 4: from `messages`, one row per message, to `message_packs`.

In portions of one transaction each: read the next rows in the order of their ids, insert them as
packs, delete them. So every message is in exactly one of the two tables, an interrupted migration
continues where it stopped, and the space of what was deleted is used again.

A row that did not match its checksums gets a checksum that does not match, so that it is reported
and never delivered. A body in parts stays where it is.

Writes the format of schema 4 (see `packs`) by itself: a later format must not change it.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    bindparam,
    cast,
    column,
    delete,
    func,
    insert,
    select,
    table,
)

from leveret.model.checksum import checksum, extend
from leveret.queues.storage.old_messages import (
    COLUMNS,
    RowsOutOfOrder,
    head_checksum,
    route_checksum,
)
from leveret.queues.storage.packing import pack_ids, pack_sizes

log = logging.getLogger("leveret.store")

PORTION_ROWS: Final = 50_000
PORTION_BYTES: Final = 4 * 1024 * 1024
"""A portion ends with the row that exceeds one of these."""
LOG_SECONDS: Final = 5.0
_PACK_BYTES: Final = 64 * 1024
_PART_BYTES: Final = 1024 * 1024
_MASK: Final = 0xFFFFFFFF
_KEEP: Final = range(3)
_KEEP_ALL: Final = 2

_HEADER: Final = struct.Struct(">BHIHHQ")
_BODY: Final = struct.Struct(">BBHI")
_END: Final = b"\xce"
_RUN: Final = struct.Struct("<IQQHH")
_INDEX: Final = struct.Struct("<QQIQQBQBQII")


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default="0")


_packs = Table(
    "message_packs",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    _number("last_id"),
    _number("count"),
    _number("first_ms"),
    _number("last_ms"),
    _number("keep"),
    _number("body_bytes"),
    _number("has_bodies"),
    Column("first_part", BigInteger, nullable=True),
    _number("parts"),
    Column("runs", LargeBinary, nullable=False),
    Column("ids", LargeBinary, nullable=True),
    Column("sizes", LargeBinary, nullable=False),
    Column("crcs", LargeBinary, nullable=False),
    _number("body_crc"),
    _number("crc"),
    Column("data", LargeBinary, nullable=True),
)
Index("packs_with_parts", _packs.c.first_part, sqlite_where=_packs.c.first_part.is_not(None))
_messages = table("messages", *map(column, COLUMNS))
_old = _messages.c
_TEXTS: Final = ("exchange", "routing_key")
_NEXT_ROWS: Final = (
    # As bytes: a damaged text cannot be decoded.
    select(*(cast(_old[name], LargeBinary) if name in _TEXTS else _old[name] for name in COLUMNS))
    .where(_old.id > 0)
    .order_by(_old.id)
    .limit(PORTION_ROWS)
)
_ID_RANGE: Final = select(func.min(_old.id), func.max(_old.id)).where(_old.id > 0)
_DELETE: Final = delete(_messages).where(_old.id <= bindparam("last"))
_LAST_PACKED: Final = select(_packs.c.last_id).order_by(_packs.c.id.desc()).limit(1)


def pack_messages(connection: Connection) -> Iterator[None]:
    """Yields when a portion is complete and the transaction may be committed."""
    _packs.create(connection, checkfirst=True)
    progress = _Progress(*connection.execute(_ID_RANGE).one())
    last = connection.execute(_LAST_PACKED).scalar() or 0
    while True:
        portion = _Portion(last)
        # Without SQLAlchemy's own result rows, which would take as long as everything else here.
        with connection.execute(_NEXT_ROWS) as rows:
            cursor: Any = rows.cursor
            portion.add(cursor)
        if not portion.packs:
            break
        last = portion.last_id
        connection.execute(insert(_packs), portion.packs)
        connection.execute(_DELETE, {"last": last})
        yield
        progress.report(last, portion.count)
    connection.exec_driver_sql("DROP TABLE messages")
    progress.end()


class _Progress:
    def __init__(self, first: int | None, last: int | None) -> None:
        self._first, self._end = (first or 0), (last or -1) + 1
        self._began = self._reported = time.monotonic()
        self._done = 0
        log.info("Upgrading the data to schema 4: up to %d messages", self._end - self._first)

    def report(self, last: int, count: int) -> None:
        self._done += count
        if time.monotonic() - self._reported >= LOG_SECONDS:
            self._reported = time.monotonic()
            percent = 100 * (last + 1 - self._first) // (self._end - self._first)
            log.info("Upgrading the data to schema 4: %d messages, %d %%", self._done, percent)

    def end(self) -> None:
        took = time.monotonic() - self._began
        log.info("The data has schema 4: %d messages upgraded in %.1f s", self._done, took)


class _Portion:
    """The packs of consecutive rows, as far as the limits allow; `last_id` is the last of them."""

    def __init__(self, last_id: int) -> None:
        self.last_id = last_id
        self.count = 0
        self.packs: list[dict[str, Any]] = []

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Raises RowsOutOfOrder."""
        pack, left, last = _Pack(0), PORTION_BYTES, self.last_id
        for row in rows:
            id_, time_ms, origin, keep, size, exchange, key, _, body, _, body_crc, part = row
            if id_ <= last:
                raise RowsOutOfOrder(f"message {id_} comes after message {last}")
            last = id_
            frames, is_sound = _frames(row)
            is_large = part is not None and body is None and is_sound
            if is_large or keep != pack.keep or len(frames) > pack.room:
                self._end(pack)
                pack = _Pack(keep)
            common = (time_ms, origin, exchange, key)
            if common != pack.common:
                pack.begin_run(common)
            pack.add(id_, frames, size, is_sound, bool(body))
            if is_large:
                pack.add_parts(part, size, body_crc)
            left -= len(frames)
            if left <= 0:
                break
        self._end(pack)
        self.last_id = last

    def _end(self, pack: _Pack) -> None:
        if pack.ids:
            self.packs.append(pack.row())
            self.count += len(pack.ids)


class _Pack:
    """A pack that grows. Messages that have `common` in common are a run."""

    def __init__(self, keep: Any) -> None:
        self.keep = keep
        self.room = _PACK_BYTES
        self.common: tuple[Any, ...] | None = None
        self.ids: list[int] = []
        self._frames: list[bytes] = []
        self._crcs: list[int] = []
        self._runs: list[tuple[int, int, int, bytes, bytes]] = []
        self._is_run_valid = True
        self._body_bytes = self._first_part = self._parts = self._body_crc = 0
        self._has_bodies = False

    def begin_run(self, common: tuple[Any, ...]) -> None:
        """The old checksums do not include time and origin: they may be anything."""
        self.common = common
        numbers = [value for value in common[:2] if isinstance(value, int)]
        names = [name for name in common[2:] if isinstance(name, bytes) and len(name) < 1 << 16]
        self._is_run_valid = len(numbers) == len(names) == 2
        if not self._is_run_valid:
            numbers, names = [0, 0], [b"", b""]
        run = (max(numbers[0], 0), max(numbers[1], 0), names[0], names[1])
        self._runs.append((len(self.ids), *run))

    def add(self, id_: int, frames: bytes, size: int, is_sound: bool, has_body: bool) -> None:
        crc = checksum(frames)
        if is_sound and self._is_run_valid:
            self._body_bytes += size
            self._crcs.append(crc)
        else:
            has_body = True  # as long as it is not known
            self._crcs.append(crc ^ _MASK)
        if has_body:
            self._has_bodies = True
        self.ids.append(id_)
        self._frames.append(frames)
        self.room -= len(frames)

    def add_parts(self, first_part: int, size: int, body_crc: int) -> None:
        """The body of the only message."""
        self._first_part, self._body_crc = first_part, body_crc
        self._parts = -(-size // _PART_BYTES)
        self._has_bodies, self.room = True, -1

    def row(self) -> dict[str, Any]:
        ids = self.ids
        times = [time_ms for _, time_ms, *_ in self._runs]
        keep = self.keep if self.keep in _KEEP else _KEEP_ALL
        numbers = {
            "id": ids[0],
            "last_id": ids[-1],
            "count": len(ids),
            "first_ms": min(times),
            "last_ms": max(times),
            "keep": keep,
            "body_bytes": self._body_bytes,
            "has_bodies": int(self._has_bodies),
            "first_part": self._first_part,
            "parts": self._parts,
            "body_crc": self._body_crc,
        }
        blobs = {
            "runs": b"".join(self._encoded_runs()),
            "ids": None if ids[-1] - ids[0] == len(ids) - 1 else pack_ids(ids),
            "sizes": pack_sizes(map(len, self._frames)),
            "crcs": pack_sizes(self._crcs),
        }
        crc = checksum(_INDEX.pack(*numbers.values()))
        for blob in blobs.values():
            crc = extend(crc, blob or b"")
        numbers["first_part"] = self._first_part or None
        return {**numbers, **blobs, "crc": crc, "data": b"".join(self._frames)}

    def _encoded_runs(self) -> Iterator[bytes]:
        ends = [start for start, *_ in self._runs[1:]] + [len(self.ids)]
        for (start, time_ms, origin, exchange, key), end in zip(self._runs, ends, strict=True):
            sizes = len(exchange), len(key)
            yield _RUN.pack(end - start, time_ms, origin, *sizes) + exchange + key


def _frames(row: tuple[Any, ...]) -> tuple[bytes, bool]:
    """The content frames of a message, and whether it matches its checksums."""
    id_, _, _, _, size, exchange, key, properties, body, head_crc, body_crc, first_part = row
    try:
        header = _HEADER.pack(2, 1, 12 + len(properties), 60, 0, size)
        if not body:
            frames = b"".join((header, properties, _END))
        else:
            start = _BODY.pack(0xCE, 3, 1, len(body))
            frames = b"".join((header, properties, start, body, _END))
        head = head_checksum(_route(exchange, key), id_, size, properties)
        is_sound = head == head_crc and (
            (len(body) == size and checksum(body) == body_crc)
            if body is not None
            else first_part is None or (first_part > 0 and 0 <= body_crc <= _MASK)
        )
    except (TypeError, struct.error):
        return b"", False
    return frames, is_sound


_route = lru_cache(maxsize=1024)(route_checksum)
