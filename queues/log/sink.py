"""Where the store's writer thread meets a partition.

A `PartitionSink` takes messages (or numbered ones, from idempotent producers) in the order they
were accepted and appends them as one write. What fails is taken back, so a batch that is reported
as failed left nothing readable. A full disk is reported as the operating system said it, so that
the store waits for space instead of giving up.

A `FoundingSink` makes the files of new logs. What keeps one of them from being made, other than a
full disk, is that log's trouble alone: it is told of and the batch goes on without it.

A `RetentionSink` drops old segments in the same thread, because segments belong to it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from leveret.model.message import FRAME_OVERHEAD, Message
from queues.log.batch import Entry, ProducerMark
from queues.log.errors import LogError
from queues.log.mark import sync_directory
from queues.log.partition import Partition
from queues.log.retention import Retention, apply_retention

log = logging.getLogger("leveret.log")


class Numbered(NamedTuple):
    """A message with its producer's name and number."""

    message: Message
    producer_id: bytes
    sequence: int

    @property
    def id(self) -> int:
        return self.message.id


class PartitionSink:
    """Implements `leveret.model.store.LogSink`; the answer of `write` is the next offset.

    With an interval the log is synced at most that often: what it confirms is written, not yet
    on disk. `is_unsynced` says that a sync is owed. The loop may put other limits in the place of
    `retention` at any time.
    """

    def __init__(self, partition: Partition, retention: Retention, interval_ms: int = 0) -> None:
        self.partition = partition
        self.is_unsynced = False
        self.retention = retention
        self._interval = interval_ms / 1000
        self._synced_at = 0.0
        self._segments = len(partition.segments())
        self._wrote = False

    def __repr__(self) -> str:
        return f"<PartitionSink of {self.partition!r}>"

    def write(self, records: Sequence[object]) -> object:
        self._wrote = False
        if self.partition.is_given_up:
            return 0  # its log is being deleted, and these go with it
        entries, marks = _entries(cast(Sequence[Message | Numbered], records))
        newest = cast(Message | Numbered, records[-1])
        time_ms = (newest.message if isinstance(newest, Numbered) else newest).time_ms
        try:
            first = self.partition.write(entries, time_ms, marks)
        except LogError as error:
            raise _plain(error) from error
        self._wrote = True
        return first + len(entries)

    def sync(self) -> None:
        if self.partition.is_given_up:
            return
        rolled = len(self.partition.view.bases) > self._segments
        if not rolled and time.monotonic() - self._synced_at < self._interval:
            self.partition.reveal()
            self.is_unsynced = True
            return
        self.sync_now()
        if rolled:
            # As RabbitMQ does, limits are looked at whenever a segment is full.
            retain(self.partition, self.retention, self.partition.last_time_ms)
        self._segments = len(self.partition.view.bases)

    def sync_now(self) -> None:
        self.partition.sync()
        self.is_unsynced = False
        if self._interval:
            self._synced_at = time.monotonic()

    def rollback(self) -> None:
        if self._wrote:
            self._wrote = False
            self.partition.take_back()

    def end(self) -> tuple[str, int]:
        return self.partition.directory.name, self.partition.written_offset


class FoundingSink:
    """Records are new partitions; the answer is what kept each from being made, or None."""

    def __init__(self) -> None:
        self._homes: set[Path] = set()
        self._known: set[Path] = set()

    def write(self, records: Sequence[object]) -> object:
        answers: dict[Partition, OSError | None] = {}
        for partition in cast(Sequence[Partition], records):
            answers[partition] = _found(partition)
            if partition.settings.durable and partition.is_founded:
                self._homes.add(partition.directory.parent)
        return answers

    def sync(self) -> None:
        """Once for all of them: what is in their directories can wait for the first record."""
        for home in self._homes:
            sync_directory(home)
            if home not in self._known:
                sync_directory(home.parent)
        self._known |= self._homes
        self._homes.clear()

    def rollback(self) -> None:
        """Files that were made stay: their log is made known by the next batch."""

    def end(self) -> tuple[str, int]:
        return "", 0


class SyncSink:
    """Whatever is written to it, the other sink is synced."""

    def __init__(self, sink: PartitionSink) -> None:
        self._sink = sink

    def write(self, records: Sequence[object]) -> object:
        return None

    def sync(self) -> None:
        self._sink.sync_now()

    def rollback(self) -> None:
        return None

    def end(self) -> tuple[str, int]:
        return self._sink.end()


class RetentionSink:
    """Records are points in time: apply the limits as of then."""

    def __init__(self, partition: Partition, retention: Retention) -> None:
        self._partition = partition
        self._retention = retention

    def write(self, records: Sequence[object]) -> object:
        retain(self._partition, self._retention, cast(int, records[-1]))
        return None

    def sync(self) -> None:
        return None

    def rollback(self) -> None:
        return None

    def end(self) -> tuple[str, int]:
        return self._partition.directory.name, self._partition.written_offset


def _found(partition: Partition) -> OSError | None:
    if partition.is_given_up:
        return None
    try:
        partition.found()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and partition.settings.durable:
            raise
        partition.give_up(f"found: {error}")
        return error
    return None


def retain(partition: Partition, retention: Retention, now_ms: int) -> None:
    """Dropping can be tried again later: what goes wrong here must not fail a batch."""
    try:
        partition.sync()  # the committed mark must not point into what is dropped
        apply_retention(partition, retention, now_ms)
    except (OSError, LogError) as error:
        log.error("cannot drop old segments of %s: %s", partition.directory, error)


def _entries(records: Sequence[Message | Numbered]) -> tuple[list[Entry], list[ProducerMark]]:
    """What is stored of each message; the properties and the usual body are cut out in place."""
    entries: list[Entry] = []
    marks: list[ProducerMark] = []
    append = entries.append
    address: object = None
    exchange = key = b""
    for record in records:
        if isinstance(record, Message):
            message = record
        else:
            message = record.message
            marks.append(ProducerMark(len(entries), record.producer_id, record.sequence))
        if message.address is not address:
            address = message.address
            exchange, key = message.exchange.encode(), message.routing_key.encode()
        frames, end = message.frames, 7 + message.header_size
        start = end + FRAME_OVERHEAD  # past the end octet and the head of the body frame
        if len(frames) - start - 1 == message.body_size:
            append((exchange, key, frames[19:end], frames[start:-1]))
        else:
            append((exchange, key, frames[19:end], message.body))
    return entries, marks


def _plain(error: LogError) -> Exception:
    cause = error.__cause__
    return cause if isinstance(cause, OSError) else error
