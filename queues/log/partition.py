"""One log on disk: a directory of segments, one writer, any number of readers.

Invariant: offsets are given out in order and never twice; times never decrease; a record can be
read only after `sync` has put it on disk (or `reveal` was called for a log that syncs later); a
segment is synced before the next one is created.

A log that `is_new` is empty and has no files until `found` makes them, or the first `write` does.

Thread ownership: `found`, `write`, `sync`, `roll`, `drop_oldest` and `close` belong to one thread,
the broker's writer.  `read` and the other questions may come from any thread at any time.
`swap_segment` is for the thread that compacts.

A crash leaves whole batches followed by at most one torn tail: everything synced is there, and
what was written but not synced may be.  A failed sync is final: what the disk holds is no longer
known, so the log refuses further writes until it is opened again.  A failed write is taken back.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from queues.log.batch import (
    MAX_BATCH_LENGTH,
    Entry,
    ProducerMark,
    Record,
    encode_batch,
    entry_size,
    split,
)
from queues.log.errors import Damage, LogError, LogFailed
from queues.log.founding import found_log, open_segment
from queues.log.index import INDEX_INTERVAL, SparseIndex, encode_entry, save_index
from queues.log.mark import (
    NO_SNAPSHOT,
    Mark,
    encode_mark,
    new_log_id,
    sync_directory,
    sync_log_id,
)
from queues.log.recovery import Recovered, cut_from, recover
from queues.log.scan import Place
from queues.log.segment import SegmentFile, SegmentInfo, index_path, log_path
from queues.log.view import End, LogView

DEFAULT_SEGMENT_BYTES = 500_000_000
MAX_SEGMENT_BYTES = 3_000_000_000
_SNAPSHOT_INTERVAL = 16 << 20


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """`durable=False` leaves out every fsync: for tests and for logs that may be lost."""

    max_segment_bytes: int = DEFAULT_SEGMENT_BYTES
    durable: bool = True


@dataclass(frozen=True, slots=True)
class _Undo:
    """How the log was before a write."""

    next_offset: int
    position: int
    snapshot: int
    producers: dict[bytes, int | None]


class Partition:
    """Append to and read from the log in `directory`, which is created if missing."""

    def __init__(
        self,
        directory: Path,
        settings: PartitionSettings | None = None,
        end: int | None = None,
        is_new: bool = False,
    ) -> None:
        """`end`: what is there from this offset on was never committed and is cut off.

        With `is_new` the disk is not looked at: what is there is none of this log's.
        """
        self.settings = settings or PartitionSettings()
        if not 0 < self.settings.max_segment_bytes <= MAX_SEGMENT_BYTES:
            raise LogError(f"segment size must be between 1 and {MAX_SEGMENT_BYTES} bytes")
        self.max_segment_bytes = self.settings.max_segment_bytes  # another one counts at once
        self.directory = directory
        found = Recovered(new_log_id(), [(0, 0)]) if is_new else self._recovered(end)
        self.cut_bytes = found.cut_bytes
        self.log_id = found.log_id
        self.view = LogView(directory, found.log_id, repair=True)
        self.is_founded, self.is_given_up = not is_new, False
        self._failed: str | None = None
        self._closed = False
        self._last_write: _Undo | None = None
        self._next_offset = found.next_offset
        self._last_time_ms = found.last_time_ms
        self._producers = dict(found.producers)
        self._position = found.position
        self._snapshot = found.snapshot
        self._directory_dirty = self._id_dirty = False
        self._index = SparseIndex()
        self._base = self.synced_segment = 0
        self._fd = self._index_fd = self._mark_fd = -1
        if is_new:
            self.view.set_segments(found.segments)
            self.view.set_active(0, self._index, None)
            return
        self._mark_fd = os.open(directory / "committed", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._open_active(found)
        self.synced_segment = self._base
        if found.is_clean:
            self.view.advance(End(self._base, self._position, self._next_offset))
        else:
            self.sync()

    def __repr__(self) -> str:
        state = f"failed: {self._failed}" if self._failed else f"{self.size} B"
        return f"<Partition {self.directory.name} {self.first_offset}..{self.next_offset} {state}>"

    # Writer thread.

    def found(self) -> None:
        """Make the files of a new log; after an error there are none, and it can be tried again."""
        self._check()
        if not self.is_founded:
            self._fd, self._index_fd, self._mark_fd = found_log(self.directory, self.log_id)
            self.is_founded = self._directory_dirty = self._id_dirty = True

    def give_up(self, reason: str) -> None:
        """The files cannot be made: nothing can be written to this log, ever."""
        self._failed, self.is_given_up = reason, True

    def write(
        self, entries: Sequence[Entry], now_ms: int, marks: Sequence[ProducerMark] = ()
    ) -> int:
        """Append records; returns the offset of the first.  Not readable until `sync`.

        `marks` name the entries that came from idempotent producers, in order of entry.  On an
        error nothing of this call is kept.
        """
        self._check()
        if not self.is_founded:
            self._found_to_write()
        total = sum(map(entry_size, entries))
        if self._position + total > self.max_segment_bytes:
            self.roll()
        first, position, snapshot = self._next_offset, self._position, self._snapshot
        known = {m.producer_id: self._producers.get(m.producer_id) for m in marks}
        time_ms = max(now_ms, self._last_time_ms)
        try:
            for start, stop in split(entries, total):
                producers = {m.producer_id: m.sequence for m in marks if start <= m.entry < stop}
                self._append(entries[start:stop], time_ms, producers)
        except (OSError, LogError) as error:
            self._next_offset, self._snapshot = first, snapshot
            self._take_back(position, known)
            raise LogError(f"write: {error}") from error
        self._last_time_ms = time_ms
        self._last_write = _Undo(first, position, snapshot, known)
        return first

    @property
    def written_offset(self) -> int:
        """The offset after the last record written, synced or not."""
        return self._next_offset

    def take_back(self) -> None:
        """Undo the last write, synced or not, because the batch it belongs to has failed."""
        undo, self._last_write = self._last_write, None
        if undo is None or self._failed is not None:
            return
        self._next_offset, self._snapshot = undo.next_offset, undo.snapshot
        self._take_back(undo.position, undo.producers)
        self.sync()

    def sync(self) -> int:
        """Put everything written on disk and let readers see it; returns the next offset."""
        self._check()
        if not self.is_founded:
            return self._next_offset
        try:
            if self.settings.durable:
                self._sync_files()
            self._directory_dirty = self._id_dirty = False
            mark = Mark(
                self._base, self._position, self._next_offset, self._last_time_ms, self._snapshot
            )
            os.pwrite(self._mark_fd, encode_mark(mark), 0)
        except OSError as error:
            self._failed = f"sync: {error}"
            raise LogFailed(self._failed) from error
        self.synced_segment = self._base
        return self.reveal()

    def reveal(self) -> int:
        """Let readers see what is written, on disk or not; returns the next offset."""
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
        try:
            self._create_active(self._next_offset, self._position)
            if self._producers:
                self._write_snapshot()
        except OSError as error:
            raise LogError(f"roll: {error}") from error

    def drop_oldest(self, count: int) -> int:
        """Delete the `count` oldest sealed segments; returns the first offset left."""
        self._check()
        with self.view.lock:
            gone = self._sealed()[:count]
            for base in gone:
                self.view.dropped(base)
        for base in gone:  # a large file takes long to remove: no reader waits for that
            log_path(self.directory, base).unlink()
            index_path(self.directory, base).unlink(missing_ok=True)
        self._directory_dirty = True
        return self.first_offset

    def close(self) -> None:
        """Sync and let go of all files; free to call twice."""
        if self._closed:
            return
        if self._failed is None:
            self.sync()
            if self.settings.durable and self.is_founded:
                os.fsync(self._mark_fd)
        self._closed = True
        self._failed = "closed"
        if self.is_founded:
            for fd in (self._fd, self._index_fd, self._mark_fd):
                os.close(fd)
        self.view.close()

    # Any thread.

    def read(self, offset: int, max_records: int = 1000, max_bytes: int = 1 << 20) -> list[Record]:
        """Synced records from `offset` on (from the first there is, if it is gone).

        At least one if there is one; `max_bytes` counts bodies.
        """
        return self.view.read(offset, max_records, max_bytes)

    def offset_for_time(self, time_ms: int) -> int:
        """First offset of that time or later; `next_offset` if there is none."""
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
        """Damaged batches met so far; `view.verify()` looks for all of them."""
        return list(self.view.damage.values())

    def last_sequence(self, producer_id: bytes) -> int | None:
        """What the log holds of one producer; for the loop while no batch is being written."""
        return self._producers.get(producer_id)

    def producers(self) -> Mapping[bytes, int]:
        """Last stored sequence per producer, oldest first; for opening time only."""
        return dict(self._producers)

    def swap_segment(self, base_offset: int, aside: Path | None, size: int) -> bool:
        """Put a compacted file in the place of a sealed segment; None removes the segment.

        False if the segment is gone meanwhile.  The file must be synced.
        """
        with self.view.lock:
            if base_offset not in self._sealed():
                return False
            index_path(self.directory, base_offset).unlink(missing_ok=True)
            if aside is None:
                self.view.dropped(base_offset)
                log_path(self.directory, base_offset).unlink()
            else:
                os.replace(aside, log_path(self.directory, base_offset))
                self.view.replaced(base_offset, size)
        if self.settings.durable:
            sync_directory(self.directory)
        return True

    # Inside.

    def _recovered(self, end: int | None) -> Recovered:
        self.directory.mkdir(parents=True, exist_ok=True)
        if end is not None:
            cut_from(self.directory, end)
        return recover(self.directory)

    def _found_to_write(self) -> None:
        try:
            self.found()
        except OSError as error:
            raise LogError(f"found: {error}") from error

    def _sync_files(self) -> None:
        os.fdatasync(self._fd)
        if self._id_dirty:
            sync_log_id(self.directory)
        if self._directory_dirty:
            sync_directory(self.directory)

    def _check(self) -> None:
        if self._failed is not None:
            raise LogFailed(self._failed)

    def _sealed(self) -> list[int]:
        return self.view.bases[:-1]

    def _open_active(self, found: Recovered) -> None:
        for damage in found.damage:
            self.view.damage[damage.segment, damage.position] = damage
        self.view.set_segments(found.segments)
        if not found.segments:
            self._create_active(found.next_offset, None)
            return
        self._base = found.segments[-1][0]
        segment = SegmentFile(self.directory, Place(self.log_id, self._base))
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

    def _append(self, entries: Sequence[Entry], time_ms: int, producers: dict[bytes, int]) -> None:
        data = encode_batch(self.log_id, self._next_offset, entries, time_ms, producers)
        if len(data) > MAX_BATCH_LENGTH:
            raise LogError(f"a batch of {len(data)} bytes is too long")
        for ident, sequence in producers.items():
            self._producers.pop(ident, None)
            self._producers[ident] = sequence
        if producers and self._snapshot == NO_SNAPSHOT:
            self._snapshot = self._position
        elif producers and self._position - self._snapshot > _SNAPSHOT_INTERVAL:
            self._write_snapshot()
        self._put(data, time_ms)
        self._next_offset += len(entries)

    def _write_snapshot(self) -> None:
        data = encode_batch(self.log_id, self._next_offset, (), self._last_time_ms, self._producers)
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

    def _take_back(self, position: int, producers: Mapping[bytes, int | None]) -> None:
        """Undo a write that failed half-way, or give the log up."""
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
