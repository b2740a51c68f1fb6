"""One log on disk: a directory of segments, one writer, any number of readers.

Invariant: offsets are assigned in order and never twice; times never decrease; a record is readable
only after `sync` has put it on disk (or after `reveal`, for a log that syncs later); a segment is
synced before the next one is created.

A log that `is_new` is empty and has no files until `create_files` or the first `write`.

Thread ownership: `create_files`, `write`, `sync`, `roll`, `drop_oldest` and `close` belong to one
thread, the broker's writer. Any thread may call `read` and the other read-only methods at any time.
`swap_segment` belongs to the thread that compacts.

A crash leaves complete batches followed by at most one torn tail: everything synced is there, and
what was written but not synced may be. A failed sync is final: the state of the disk is unknown, so
the log refuses further writes until it is opened again. A failed write is undone.
"""

import errno
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leveret.queues.log.files.batch import (
    MAX_BATCH_LENGTH,
    Columns,
    ProducerSequence,
    RawRecord,
    Record,
    encode_batch,
    split,
)
from leveret.queues.log.files.checkpoint_file import (
    NO_SNAPSHOT,
    Checkpoint,
    encode_checkpoint,
    new_log_id,
    open_checkpoint,
    sync_directory,
)
from leveret.queues.log.files.create import create_log_files, open_segment
from leveret.queues.log.files.errors import Damage, LogError, LogFailed
from leveret.queues.log.files.index import INDEX_INTERVAL, SparseIndex, encode_entry, save_index
from leveret.queues.log.files.recovery import RecordedEnd, RecoveredLog, cut_from, recover
from leveret.queues.log.files.scan import SegmentId
from leveret.queues.log.files.segment import SegmentFile, SegmentInfo, index_path, log_path
from leveret.queues.log.files.segment_list import NAME as LIST_NAME
from leveret.queues.log.files.segment_list import SealedSegment
from leveret.queues.log.files.view import End, LogView

logger = logging.getLogger("leveret.log")

DEFAULT_SEGMENT_BYTES = 500_000_000
MAX_SEGMENT_BYTES = 3_000_000_000
_SNAPSHOT_INTERVAL = 16 << 20
_NO_FILES = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """`durable=False` omits every fsync: for tests and for logs that may be lost.

    `is_compacted`: offsets may be missing without being lost.
    """

    max_segment_bytes: int = DEFAULT_SEGMENT_BYTES
    durable: bool = True
    is_compacted: bool = False


@dataclass(frozen=True, slots=True)
class _Undo:
    """The state of the log before a write."""

    next_offset: int
    position: int
    snapshot: int
    producers: dict[bytes, int | None]


class Partition:
    """Appends to and reads from the log in `directory`, which is created if it is missing."""

    def __init__(
        self,
        directory: Path,
        settings: PartitionSettings | None = None,
        end: int | None = None,
        is_new: bool = False,
        recorded: RecordedEnd | None = None,
    ) -> None:
        """`end`: records from this offset on were never committed and are removed.

        `recorded`: what the broker knows about the end; if the log is shorter, records are lost.
        With `is_new` the disk is not read: files that exist do not belong to this log.
        """
        self.settings = settings or PartitionSettings()
        if not 0 < self.settings.max_segment_bytes <= MAX_SEGMENT_BYTES:
            raise LogError(f"segment size must be between 1 and {MAX_SEGMENT_BYTES} bytes")
        self.max_segment_bytes = self.settings.max_segment_bytes  # a change applies at once
        self.directory = directory
        recovered = RecoveredLog(new_log_id(), [(0, 0)]) if is_new else self._recover(end, recorded)
        self.cut_bytes = recovered.cut_bytes
        self.log_id = recovered.log_id
        self.view = LogView(directory, recovered.log_id, repair=True)
        self._list = recovered.listed
        self.view.lost = list(self._list.lost)
        self.has_files, self.is_abandoned = not is_new, False
        self._failed: str | None = None
        self._closed = False
        self._last_write: _Undo | None = None
        self._has_warned = False
        self._next_offset = recovered.next_offset
        self._last_time_ms = recovered.last_time_ms
        self._producers = dict(recovered.producers)
        self._position = recovered.position
        self._snapshot = recovered.snapshot
        self._directory_dirty = False
        self._index = SparseIndex()
        self._base = self.synced_segment = 0
        self._fd = self._index_fd = self._checkpoint_fd = -1
        if is_new:
            self.view.set_segments(recovered.segments)
            self.view.set_active(0, self._index, None)
        else:
            self._open_files(recovered)

    def __repr__(self) -> str:
        state = f"failed: {self._failed}" if self._failed else f"{self.size} B"
        return f"<Partition {self.directory.name} {self.first_offset}..{self.next_offset} {state}>"

    # Writer thread.

    def create_files(self) -> None:
        """Create the files of a new log; after an error none is left, and it can be tried again."""
        self._check()
        if not self.has_files:
            files = create_log_files(self.directory, self.log_id)
            self._fd, self._index_fd, self._checkpoint_fd = files
            self.has_files = self._directory_dirty = True

    def abandon(self, reason: str) -> None:
        """The files cannot be created: refuse all writes."""
        self._failed, self.is_abandoned = reason, True

    def write(
        self, records: Sequence[RawRecord], now_ms: int, sequences: Sequence[ProducerSequence] = ()
    ) -> int:
        """`write_columns` for single records."""
        return self.write_columns(Columns.of(records), now_ms, sequences)

    def write_columns(
        self, records: Columns, now_ms: int, sequences: Sequence[ProducerSequence] = ()
    ) -> int:
        """Append records; returns the offset of the first one. Not readable until `sync`.

        `sequences` name the records of idempotent producers, in order. After an error nothing of
        this call is kept.
        """
        self._check()
        if not self.has_files:
            self._create_files_to_write()
        total = records.size
        if self._position + total > self.max_segment_bytes:
            self._roll_if_possible()
        first, position, snapshot = self._next_offset, self._position, self._snapshot
        before = {s.producer_id: self._producers.get(s.producer_id) for s in sequences}
        time_ms = max(now_ms, self._last_time_ms)
        try:
            for start, stop in split(records, total):
                producers = {
                    s.producer_id: s.sequence for s in sequences if start <= s.record_index < stop
                }
                self._append(records.part(start, stop), time_ms, producers)
        except (OSError, LogError) as error:
            self._next_offset, self._snapshot = first, snapshot
            self._truncate_to(position, before)
            raise LogError(f"write: {error}") from error
        self._last_time_ms = time_ms
        self._last_write = _Undo(first, position, snapshot, before)
        return first

    @property
    def written_offset(self) -> int:
        """The offset after the last record written, synced or not (Kafka: log end offset)."""
        return self._next_offset

    def undo_write(self) -> None:
        """Undo the last write, synced or not, because its batch has failed."""
        undo, self._last_write = self._last_write, None
        if undo is None or self._failed is not None:
            return
        self._next_offset, self._snapshot = undo.next_offset, undo.snapshot
        self._truncate_to(undo.position, undo.producers)
        self.sync()

    def sync(self) -> int:
        """Sync everything written and make it readable; returns the next offset."""
        self._check()
        if not self.has_files:
            return self._next_offset
        try:
            if self.settings.durable:
                self._sync_files()
            self._directory_dirty = False
            checkpoint = Checkpoint(
                self._base, self._position, self._next_offset, self._last_time_ms, self._snapshot
            )
            os.pwrite(self._checkpoint_fd, encode_checkpoint(checkpoint), 0)
        except OSError as error:
            self._failed = f"sync: {error}"
            raise LogFailed(self._failed) from error
        self.synced_segment = self._base
        return self.reveal()

    def reveal(self) -> int:
        """Make everything written readable, synced or not; returns the next offset."""
        self.view.advance(End(self._base, self._position, self._next_offset))
        return self._next_offset

    def roll(self) -> None:
        """Seal the active segment and start a new one, unless it is empty."""
        self._check()
        self._last_write = None
        if self._position == 0:
            return
        try:
            if self.settings.durable:
                os.fdatasync(self._fd)
        except OSError as error:
            self._failed = f"sync: {error}"
            raise LogFailed(self._failed) from error
        sealed = SealedSegment(self._base, self._next_offset, self._position)
        try:
            self._create_active(self._next_offset, self._position)
            self._list.seal(sealed, self._base)
            self._save_list()
            if self._producers:
                self._write_snapshot()
        except OSError as error:
            raise LogError(f"roll: {error}") from error

    def drop_oldest(self, count: int) -> int:
        """Delete the `count` oldest sealed segments; returns the first offset left."""
        self._check()
        with self.view.lock:
            dropped = self._sealed()[:count]
            for base in dropped:
                self.view.dropped(base)
        self._list.drop(dropped, self.first_offset)
        self.view.lost = list(self._list.lost)
        self._save_list()  # before the files are gone, or they would count as missing
        for base in dropped:  # outside the lock: removing a large file takes long
            log_path(self.directory, base).unlink()
            index_path(self.directory, base).unlink(missing_ok=True)
        self._directory_dirty = True
        return self.first_offset

    def close(self) -> None:
        """Sync and close all files; a second call has no effect."""
        if self._closed:
            return
        if self._failed is None:
            self.sync()
            if self.settings.durable and self.has_files:
                os.fsync(self._checkpoint_fd)
        self._closed = True
        self._failed = "closed"
        if self.has_files:
            for fd in (self._fd, self._index_fd, self._checkpoint_fd):
                os.close(fd)
        self.view.close()

    # Any thread.

    def read(self, offset: int, max_records: int = 1000, max_bytes: int = 1 << 20) -> list[Record]:
        """Synced records from `offset` on, or from the first offset if that is higher.

        At least one if there is one; `max_bytes` limits the bodies.
        """
        return self.view.read(offset, max_records, max_bytes)

    def offset_for_time(self, time_ms: int) -> int:
        """First offset with that time or later; `next_offset` if there is none."""
        return self.view.offset_for_time(time_ms)

    @property
    def first_offset(self) -> int:
        return self.view.first_offset

    @property
    def next_offset(self) -> int:
        """The offset after the last synced record."""
        return self.view.end.offset

    @property
    def last_time_ms(self) -> int:
        return self._last_time_ms

    @property
    def size(self) -> int:
        return self.view.size

    def segments(self) -> list[SegmentInfo]:
        return self.view.segments()

    def damage(self) -> list[Damage]:
        """Missing segments, and damaged batches found so far; `view.verify()` finds all of them."""
        return self.view.all_damage()

    def producers(self) -> Mapping[bytes, int]:
        """Last stored sequence number per producer, oldest first; valid right after opening."""
        return dict(self._producers)

    def swap_segment(self, base_offset: int, replacement: Path | None, size: int) -> bool:
        """Replace a sealed segment by a compacted file, which must be synced; None deletes it.

        Returns False if the segment was deleted meanwhile.
        """
        with self.view.lock:
            if base_offset not in self._sealed():
                return False
            if replacement is None:
                self._list.replace(base_offset, None)
                self._save_list()
            index_path(self.directory, base_offset).unlink(missing_ok=True)
            if replacement is None:
                self.view.dropped(base_offset)
                log_path(self.directory, base_offset).unlink()
            else:
                os.replace(replacement, log_path(self.directory, base_offset))
                self.view.replaced(base_offset, size)
                self._list.replace(base_offset, size)
                self._save_list()
        if self.settings.durable:
            sync_directory(self.directory)
        return True

    # Internal.

    def _recover(self, end: int | None, recorded: RecordedEnd | None) -> RecoveredLog:
        self.directory.mkdir(parents=True, exist_ok=True)
        if end is not None:
            cut_from(self.directory, end)
        return recover(self.directory, recorded, self.settings.is_compacted)

    def _save_list(self) -> None:
        """An error is not fatal: without a list, or with an old one, less damage is recognized."""
        try:
            self._list.save(self.directory, self.settings.durable)
        except OSError as error:
            logger.warning("cannot write %s: %s", self.directory / LIST_NAME, error)

    def _roll_if_possible(self) -> None:
        """Without inodes or file descriptors for a new segment, the full one is continued."""
        full = self._base
        try:
            self.roll()
        except LogFailed:
            raise
        except LogError as error:
            cause = error.__cause__
            is_created = self._base != full  # then the producer state could not be written
            if is_created or not isinstance(cause, OSError) or cause.errno not in _NO_FILES:
                raise
            if not self._has_warned:
                logger.warning(
                    "%s continues in the full segment, because no new one can be created: %s",
                    self.directory,
                    cause,
                )
            self._has_warned = True
        else:
            self._has_warned = False

    def _create_files_to_write(self) -> None:
        try:
            self.create_files()
        except OSError as error:
            raise LogError(f"create: {error}") from error

    def _sync_files(self) -> None:
        os.fdatasync(self._fd)
        if self._directory_dirty:
            sync_directory(self.directory)

    def _check(self) -> None:
        if self._failed is not None:
            raise LogFailed(self._failed)

    def _sealed(self) -> list[int]:
        return self.view.bases[:-1]

    def _open_files(self, recovered: RecoveredLog) -> None:
        self._checkpoint_fd = open_checkpoint(self.directory)
        self._open_active(recovered)
        self.synced_segment = self._list.active = self._base
        if not recovered.is_list_saved:
            self._save_list()
            self._directory_dirty = True
        if recovered.is_clean:
            self.view.advance(End(self._base, self._position, self._next_offset))
        else:
            self.sync()

    def _open_active(self, recovered: RecoveredLog) -> None:
        for damage in recovered.damage:
            self.view.damage[damage.segment, damage.position] = damage
        self.view.set_segments(recovered.segments)
        if not recovered.segments:
            self._create_active(recovered.next_offset, None)
            return
        self._base = recovered.segments[-1][0]
        segment = SegmentFile(self.directory, SegmentId(self.log_id, self._base))
        self._index = segment.complete_index(self._position)
        segment.close()
        path = index_path(self.directory, self._base)
        if not path.exists() or path.read_bytes() != self._index.encode():
            save_index(path, self._index)
        self._fd, self._index_fd = open_segment(self.directory, self._base, os.O_RDWR)
        self.view.set_active(self._base, self._index, None)

    def _create_active(self, base: int, sealed_size: int | None) -> None:
        files = open_segment(self.directory, base, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if sealed_size is not None:
            os.close(self._fd)
            os.close(self._index_fd)
        self._fd, self._index_fd = files
        self._base, self._position, self._snapshot = base, 0, NO_SNAPSHOT
        self._index = SparseIndex()
        self._directory_dirty = True
        self.view.set_active(base, self._index, sealed_size)

    def _append(self, records: Columns, time_ms: int, producers: dict[bytes, int]) -> None:
        data = encode_batch(self.log_id, self._next_offset, records, time_ms, producers)
        if len(data) > MAX_BATCH_LENGTH:
            raise LogError(f"a batch of {len(data)} bytes is too large: at most {MAX_BATCH_LENGTH}")
        for ident, sequence in producers.items():
            self._producers.pop(ident, None)
            self._producers[ident] = sequence
        if producers and self._snapshot == NO_SNAPSHOT:
            self._snapshot = self._position
        elif producers and self._position - self._snapshot > _SNAPSHOT_INTERVAL:
            self._write_snapshot()
        self._put(data, time_ms)
        self._next_offset += len(records.bodies)

    def _write_snapshot(self) -> None:
        none = Columns.of(())
        data = encode_batch(
            self.log_id, self._next_offset, none, self._last_time_ms, self._producers
        )
        self._snapshot = self._position
        self._put(data, self._last_time_ms)

    def _put(self, data: bytes, time_ms: int) -> None:
        view, at = memoryview(data), self._position
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written
        if self._index.is_due(self._position, INDEX_INTERVAL):
            os.write(self._index_fd, encode_entry(self._next_offset, self._position, time_ms))
            self._index.add(self._next_offset, self._position, time_ms)
        self._position = at

    def _truncate_to(self, position: int, producers: Mapping[bytes, int | None]) -> None:
        """Undo a write; if that fails, the log refuses further writes."""
        self._position = position
        self._index.truncate_to(position)
        for ident, sequence in producers.items():
            if sequence is None:
                self._producers.pop(ident, None)
            else:
                self._producers[ident] = sequence
        try:
            os.ftruncate(self._fd, position)
        except OSError as error:
            self._failed = f"truncate: {error}"
            raise LogFailed(self._failed) from error
