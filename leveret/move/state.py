"""What a move has done so far, in a SQLite file, so that a killed run can be continued.

For each queue: totals, the offset of the next record if it is a stream, and the messages in flight
in the order of their states: `published` to the target, then `confirmed` by it. A row is removed
when the source has processed the ack.

A process that is killed loses nothing of this. After a power failure the last batches may be
missing from the file; their messages are then moved twice, and not counted as duplicates.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

_SETUP = (
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA synchronous=NORMAL",
    "CREATE TABLE IF NOT EXISTS moved ("
    " route TEXT NOT NULL, queue TEXT NOT NULL,"
    " messages INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum TEXT NOT NULL,"
    " skipped INTEGER NOT NULL, possible_duplicates INTEGER NOT NULL, next_offset INTEGER,"
    " PRIMARY KEY (route, queue))",
    "CREATE TABLE IF NOT EXISTS in_flight ("
    " route TEXT NOT NULL, queue TEXT NOT NULL, key TEXT NOT NULL, step INTEGER NOT NULL,"
    " redelivered INTEGER NOT NULL)",
)
_CHECKSUM_MASK = (1 << 128) - 1


class StateInUse(Exception):
    """Another process has the file open, or it is not such a file."""


class Step(IntEnum):
    PUBLISHED = 1
    CONFIRMED = 2


@dataclass(frozen=True, slots=True)
class Totals:
    """What has been moved from one queue, in all runs."""

    messages: int = 0
    bytes: int = 0
    checksum: int = 0
    """Sum of the messages' digests: independent of their order."""
    skipped: int = 0
    """Messages that a killed run had moved already, without an ack that reached the source."""
    possible_duplicates: int = 0
    """Messages that a killed run had published, without a confirm that was recorded."""
    next_offset: int | None = None

    def plus(self, sizes: Iterable[int], digests: Iterable[int]) -> Totals:
        counted = list(sizes)
        return replace(
            self,
            messages=self.messages + len(counted),
            bytes=self.bytes + sum(counted),
            checksum=(self.checksum + sum(digests)) & _CHECKSUM_MASK,
        )


@dataclass(frozen=True, slots=True)
class InFlight:
    key: str
    step: Step
    redelivered: bool
    """Whether the source had delivered the message before this move did."""


class MoveState:
    """The rows of one route, which is a source and a target."""

    def __init__(self, file: Path, route: str) -> None:
        self._route = route
        try:
            self._sql = sqlite3.connect(file, isolation_level=None, timeout=0.5)
        except sqlite3.Error as error:
            raise StateInUse(f"{file}: {error}") from None
        try:
            for statement in _SETUP:
                self._sql.execute(statement)
            self._sql.execute("BEGIN EXCLUSIVE")
            self._sql.execute("COMMIT")
        except sqlite3.Error as error:
            self._sql.close()
            raise StateInUse(f"{file}: {error}") from None

    def close(self) -> None:
        self._sql.close()

    def totals(self, queue: str) -> Totals:
        row = self._sql.execute(
            "SELECT messages, bytes, checksum, skipped, possible_duplicates, next_offset"
            " FROM moved WHERE route = ? AND queue = ?",
            (self._route, queue),
        ).fetchone()
        if row is None:
            return Totals()
        messages, size, checksum, skipped, duplicates, offset = row
        return Totals(messages, size, int(checksum, 16), skipped, duplicates, offset)

    def in_flight(self, queue: str) -> list[InFlight]:
        rows = self._sql.execute(
            "SELECT key, step, redelivered FROM in_flight WHERE route = ? AND queue = ?",
            (self._route, queue),
        )
        return [InFlight(key, Step(step), bool(before)) for key, step, before in rows]

    def save(self, queue: str, totals: Totals, in_flight: Sequence[InFlight]) -> None:
        """Replace what is known of a queue, in one transaction."""
        here = (self._route, queue)
        self._sql.execute("BEGIN")
        self._sql.execute("DELETE FROM in_flight WHERE route = ? AND queue = ?", here)
        self._sql.executemany(
            "INSERT INTO in_flight VALUES (?, ?, ?, ?, ?)",
            [(*here, each.key, each.step, each.redelivered) for each in in_flight],
        )
        values = (totals.messages, totals.bytes, f"{totals.checksum:032x}", totals.skipped)
        self._sql.execute(
            "INSERT OR REPLACE INTO moved VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*here, *values, totals.possible_duplicates, totals.next_offset),
        )
        self._sql.execute("COMMIT")
