"""Where the store's writer thread meets a partition.

A `PartitionSink` takes messages (or numbered ones, from idempotent producers) in the order they
were accepted and appends them as one write. What fails is taken back, so a batch that is reported
as failed left nothing readable. A full disk is reported as the operating system said it, so that
the store waits for space instead of giving up.

A `RetentionSink` drops old segments in the same thread, because segments belong to it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, cast

from leveret.model.message import Message
from queues.log.batch import Entry, ProducerMark
from queues.log.errors import LogError
from queues.log.partition import Partition
from queues.log.retention import Retention, apply_retention

log = logging.getLogger("leveret.log")


class Numbered(NamedTuple):
    """A message with its producer's name and number."""

    message: Message
    producer_id: bytes
    sequence: int


class PartitionSink:
    """Implements `leveret.model.store.LogSink`; the answer of `write` is the next offset."""

    def __init__(self, partition: Partition, retention: Retention) -> None:
        self.partition = partition
        self._retention = retention
        self._segments = len(partition.segments())
        self._wrote = False

    def __repr__(self) -> str:
        return f"<PartitionSink of {self.partition!r}>"

    def write(self, records: Sequence[object]) -> object:
        self._wrote = False
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
        self.partition.sync()
        count = len(self.partition.view.bases)
        if count > self._segments:
            # As RabbitMQ does, limits are looked at whenever a segment is full.
            retain(self.partition, self._retention, self.partition.last_time_ms)
            count = len(self.partition.view.bases)
        self._segments = count

    def rollback(self) -> None:
        if self._wrote:
            self._wrote = False
            self.partition.take_back()


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


def retain(partition: Partition, retention: Retention, now_ms: int) -> None:
    """Dropping can be tried again later: what goes wrong here must not fail a batch."""
    try:
        apply_retention(partition, retention, now_ms)
    except (OSError, LogError) as error:
        log.error("cannot drop old segments of %s: %s", partition.directory, error)


def _entries(records: Sequence[Message | Numbered]) -> tuple[list[Entry], list[ProducerMark]]:
    entries: list[Entry] = []
    marks: list[ProducerMark] = []
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
        entries.append((exchange, key, message.properties, message.body))
    return entries, marks


def _plain(error: LogError) -> Exception:
    cause = error.__cause__
    return cause if isinstance(cause, OSError) else error
