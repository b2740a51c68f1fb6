"""Which messages a database has: in packs, in the rows of an older schema, or, when a migration was
interrupted, in both."""

from __future__ import annotations

import json
import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from leveret.model.checksum import extend
from leveret.model.message import PART_BYTES
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage.packing import unpack_ids
from leveret.queues.storage.packs import Pack, PackRow

ROWS: Final = "messages"
PACKS: Final = "message_packs"
_IDS_PER_QUERY: Final = 10_000


class Content:
    """The packs must not change any more when `missing` is called."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = {name for (name,) in connection.execute(compiled.TABLE_NAMES)}
        self._has_rows = ROWS in names
        self._has_packs = PACKS in names

    def _number(self, sql: str, *values: object) -> int | None:
        number: int | None = self._connection.execute(sql, values).fetchone()[0]
        return number

    def last_id(self) -> int:
        rows = self._number("SELECT max(id) FROM messages") if self._has_rows else 0
        return max(rows or 0, self.last_packed_before(1 << 62))

    def last_packed_before(self, pack: int) -> int:
        """The last message of the packs before this one."""
        sql = "SELECT max(last_id) FROM message_packs WHERE id < ?"
        return (self._number(sql, pack) if self._has_packs else 0) or 0

    def maybe_next_id(self, after: int) -> int | None:
        """The lowest id above this one that a row or a pack begins with."""
        found = [
            self._number(f"SELECT min(id) FROM {name} WHERE id > ?", after)  # noqa: S608
            for name, exists in ((ROWS, self._has_rows), (PACKS, self._has_packs))
            if exists
        ]
        return min((number for number in found if number is not None), default=None)

    def missing(self, ids: Sequence[int]) -> list[int]:
        """Those of these ids that are not stored."""
        missing = list(self._not_in_packs(ids)) if self._has_packs else list(ids)
        return list(self._not_in_rows(missing)) if self._has_rows else missing

    def _not_in_rows(self, ids: list[int]) -> Iterator[int]:
        for start in range(0, len(ids), _IDS_PER_QUERY):
            part = json.dumps(ids[start : start + _IDS_PER_QUERY])
            rows = self._connection.execute(
                "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM messages)",
                (part,),
            )
            yield from (message_id for (message_id,) in rows)

    def _not_in_packs(self, ids: Iterable[int]) -> Iterator[int]:
        firsts, lasts = self._pack_ranges
        known = -1
        members: Container[int] = ()
        for message_id in ids:
            at = bisect_right(firsts, message_id) - 1
            if at < 0 or message_id > lasts[at]:
                yield message_id
                continue
            if at != known:
                known, members = at, self._members(firsts[at], lasts[at])
            if message_id not in members:
                yield message_id

    @cached_property
    def _pack_ranges(self) -> tuple[array[int], array[int]]:
        firsts, lasts = array("Q"), array("Q")
        for first, last in self._connection.execute(
            "SELECT id, last_id FROM message_packs ORDER BY id"
        ):
            firsts.append(first)
            lasts.append(last)
        return firsts, lasts

    def _members(self, first: int, last: int) -> Container[int]:
        sql = "SELECT ids FROM message_packs WHERE id = ?"
        (ids,) = self._connection.execute(sql, (first,)).fetchone()
        return range(first, last + 1) if ids is None else frozenset(unpack_ids(ids))

    def routes(self, ids: Sequence[int]) -> Iterator[tuple[int, str, str]]:
        """Origin, exchange and routing key of these messages, as far as they are stored."""
        if self._has_rows:
            yield from self._connection.execute(
                "SELECT origin, exchange, routing_key FROM messages"
                " WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(list(ids)),),
            )
        for message_id in ids if self._has_packs else ():
            row = self._connection.execute(
                "SELECT * FROM message_packs WHERE id <= ? ORDER BY id DESC LIMIT 1", (message_id,)
            ).fetchone()
            pack = Pack(PackRow._make(row)) if row else None
            at = pack.maybe_position(message_id) if pack else None
            if pack and at is not None:
                run = next(run for run in pack.runs if run.start <= at < run.end)
                yield run.origin, run.exchange, run.routing_key


def sound_part(connection: sqlite3.Connection, row: PackRow) -> tuple[PackRow | None, list[int]]:
    """The pack without the messages whose content is damaged, and the ids of those."""
    pack = Pack(row)
    if row.parts:
        parts = _parts(connection, row)
        if row.data is None:
            pack = Pack(row, b"".join(parts))
        elif not _is_body(parts, row):
            return None, [row.id]
    frames = pack.frames(0, len(pack))
    if pack.are_sound(0, frames):
        return row, []
    damaged = [pack.ids[at] for at, one in enumerate(frames) if not pack.are_sound(at, [one])]
    return pack.without(set(damaged).__contains__), damaged


def _parts(connection: sqlite3.Connection, row: PackRow) -> list[bytes]:
    """Zeroes for those that are lost, so that the others are in their places."""
    first = row.first_part or 0
    found: dict[int, Any] = dict(
        connection.execute(
            "SELECT id, data FROM body_parts WHERE id >= ? AND id < ?", (first, first + row.parts)
        )
    )
    return [found.get(part, bytes(PART_BYTES)) for part in range(first, first + row.parts)]


def _is_body(parts: list[bytes], row: PackRow) -> bool:
    crc = 0
    for part in parts:
        crc = extend(crc, part)
    return sum(map(len, parts)) == row.body_bytes and crc == row.body_crc
