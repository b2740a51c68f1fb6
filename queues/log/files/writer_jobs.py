"""What the store's writer thread does with a partition.

A `PartitionSink` receives messages in the order they were accepted and appends them as one write.
A failed write is undone, so a batch that is reported as failed leaves nothing readable. A full disk
is reported as the operating system's error, so that the store waits for space.

The other classes are writer jobs: work on files that belongs to a batch but appends no records.
`CreateFiles` creates the files of a new log. An error other than a full disk (such as a lack of
inodes) concerns that log alone: the job keeps it and the batch continues. `SyncLog` syncs a log
whose records were confirmed before they were synced. `ApplyRetention` deletes old segments.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from leveret.model.message import FRAME_OVERHEAD
from leveret.model.run import Run
from leveret.model.store import LogRecords, SequencedMessage
from leveret.queues.log.files.batch import Columns, ProducerSequence
from leveret.queues.log.files.checkpoint_file import sync_directory
from leveret.queues.log.files.create import FULL, explained
from leveret.queues.log.files.errors import LogError
from leveret.queues.log.files.partition import Partition
from leveret.queues.log.files.retention import RetentionLimits, apply_retention

logger = logging.getLogger("leveret.log")


class PartitionSink:
    """Implements `leveret.model.store.LogSink`.

    With an interval the log is synced at most that often: a confirmed record is written, but not
    yet synced. `is_unsynced` says that a sync is due. The event loop may replace `retention` at any
    time.
    """

    def __init__(
        self, partition: Partition, retention: RetentionLimits, interval_ms: int = 0
    ) -> None:
        self.partition = partition
        self.is_unsynced = False
        self.retention = retention
        self._interval = interval_ms / 1000
        self._synced_at = 0.0
        self._segments = len(partition.segments())
        self._has_written = False
        self._name = partition.directory.name

    def __repr__(self) -> str:
        return f"<PartitionSink of {self.partition!r}>"

    def write(self, records: Sequence[LogRecords]) -> int:
        self._has_written = False
        if self.partition.is_abandoned:
            return 0  # the log is being deleted, together with these records
        columns, sequences = _columns(records)
        newest = records[-1]
        time_ms = (newest.message if isinstance(newest, SequencedMessage) else newest).time_ms
        try:
            first = self.partition.write_columns(columns, time_ms, sequences)
        except LogError as error:
            raise _os_error(error) from error
        self._has_written = True
        return first + len(columns.bodies)

    def sync(self) -> None:
        if self.partition.is_abandoned:
            return
        has_rolled = len(self.partition.view.bases) > self._segments
        if not has_rolled and time.monotonic() - self._synced_at < self._interval:
            self.partition.reveal()
            self.is_unsynced = True
            return
        self.sync_now()
        if has_rolled:
            # Like RabbitMQ, check the limits whenever a segment is full.
            delete_expired(self.partition, self.retention, self.partition.last_time_ms)
        self._segments = len(self.partition.view.bases)

    def sync_now(self) -> None:
        self.partition.sync()
        self.is_unsynced = False
        if self._interval:
            self._synced_at = time.monotonic()

    def rollback(self) -> None:
        if self._has_written:
            self._has_written = False
            self.partition.undo_write()

    def end(self) -> tuple[str, int]:
        return self._name, self.partition.written_offset


class ParentDirectories:
    """The directories that hold the directories of logs; shared by all `CreateFiles` jobs.

    However many logs a batch creates, each parent is synced once. Writer thread only.
    """

    def __init__(self) -> None:
        self._changed: set[Path] = set()
        self._known: set[Path] = set()

    def add(self, parent: Path) -> None:
        self._changed.add(parent)

    def sync(self) -> None:
        """The contents of the new directories are synced with their first record."""
        for parent in self._changed:
            sync_directory(parent)
            if parent not in self._known:
                sync_directory(parent.parent)
        self._known |= self._changed
        self._changed.clear()


class CreateFiles:
    """Create the files of a new log; `error` is why that failed.

    If the batch fails, created files stay: the next batch makes their log known.
    """

    def __init__(self, partition: Partition, parents: ParentDirectories) -> None:
        self.partition = partition
        self.error: OSError | None = None
        self._parents = parents

    def prepare(self) -> None:
        partition = self.partition
        if not partition.is_abandoned:
            try:
                partition.create_files()
            except OSError as error:
                self.error = error
                if error.errno in FULL and partition.settings.durable:
                    self.error = explained(error, partition.directory)
                    if self.error is error:
                        raise  # the whole batch waits for space
                partition.abandon(f"create: {self.error}")
        if partition.settings.durable and partition.has_files:
            self._parents.add(partition.directory.parent)

    def finish(self) -> None:
        self._parents.sync()


@dataclass(frozen=True, slots=True)
class SyncLog:
    """Sync what a log with a sync interval has written."""

    sink: PartitionSink

    def prepare(self) -> None:
        return None

    def finish(self) -> None:
        self.sink.sync_now()


@dataclass(frozen=True, slots=True)
class ApplyRetention:
    """Delete the segments that are beyond the limits at `now_ms`."""

    partition: Partition
    limits: RetentionLimits
    now_ms: int

    def prepare(self) -> None:
        return None

    def finish(self) -> None:
        delete_expired(self.partition, self.limits, self.now_ms)


def delete_expired(partition: Partition, limits: RetentionLimits, now_ms: int) -> None:
    """Apply the limits. An error does not fail the batch: deleting can be tried again later."""
    try:
        partition.sync()  # the checkpoint must not point into a deleted segment
        apply_retention(partition, limits, now_ms)
    except (OSError, LogError) as error:
        logger.error("cannot delete old segments of %s: %s", partition.directory, error)


def _columns(records: Sequence[LogRecords]) -> tuple[Columns, list[ProducerSequence]]:
    """The stored part of the messages; properties and bodies in one frame are sliced in place."""
    columns: tuple[list[bytes], list[bytes], list[bytes], list[bytes]] = ([], [], [], [])
    exchanges, keys, properties, bodies = columns
    sequences: list[ProducerSequence] = []
    address: object = None
    exchange = key = b""
    for record in records:
        message = record.message if isinstance(record, SequencedMessage) else record
        if message.address is not address:
            address = message.address
            exchange, key = message.address.exchange.encode(), message.address.routing_key.encode()
        if isinstance(message, Run):
            exchanges += [exchange] * len(message)
            keys += [key] * len(message)
            _add_run(message, properties, bodies)
            continue
        if isinstance(record, SequencedMessage):
            sequences.append(ProducerSequence(len(bodies), record.producer_id, record.sequence))
        frames, end = message.frames, 7 + message.header_size
        start = end + FRAME_OVERHEAD  # past the frame-end byte and the head of the body frame
        is_one_frame = len(frames) - start - 1 == message.body_size
        exchanges.append(exchange)
        keys.append(key)
        properties.append(frames[19:end])
        bodies.append(frames[start:-1] if is_one_frame else message.body)
    return Columns(*columns), sequences


def _add_run(run: Run, properties: list[bytes], bodies: list[bytes]) -> None:
    """A run whose messages differ in nothing but their bodies needs one slice for each."""
    frames, head_sizes, sizes = run.frames, run.header_sizes, run.body_sizes
    count, end = len(frames), 7 + head_sizes[0]
    start = end + FRAME_OVERHEAD
    head = frames[0][:start]
    if sizes[0] and all(map(bytes.startswith, frames, repeat(head))):
        properties += [head[19:end]] * count
        bodies += [content[start:-1] for content in frames]
        return
    for content, head_size, size in zip(frames, head_sizes, sizes, strict=True):
        properties.append(content[19 : 7 + head_size])
        bodies.append(content[7 + head_size + FRAME_OVERHEAD : -1] if size else b"")


def _os_error(error: LogError) -> Exception:
    """The operating system's error behind a log error, if there is one."""
    cause = error.__cause__
    return cause if isinstance(cause, OSError) else error
