"""Transient messages that do not fit into memory: files that are never synced.

Every queue that spills has its own segments in the folder `spill` of the data directory. Messages
are gathered into blocks of a few hundred, a thread writes the blocks, and a segment is deleted when
the queue has taken its last message. Memory holds a few numbers per block. Nothing here survives:
the folder is emptied at the next start, after a crash as well as after a clean stop.

A block that could not be written (the disk is full) stays in memory, is readable there, and is
written later. The bytes that wait are part of the store's backlog, so publishers are paused while
there are too many of them.

Threads: everything is called on the event-loop thread, except `_Writer._run` and `_read`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import sys
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, count, pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Final

from leveret.model.checksum import extend
from leveret.model.message import LargeBody, Message
from leveret.model.store import LoadResult, SpilledMessage, StoreError, UnreadableMessage

log = logging.getLogger("leveret.store")

FOLDER: Final = "spill"
BLOCK_MESSAGES: Final = 256
BLOCK_BYTES: Final = 256 * 1024
SEGMENT_BYTES: Final = 16 * 1024 * 1024
RETRY_SECONDS: Final = 0.25
_COMPACT_AT: Final = 1_024
_MESSAGE_BYTES: Final = 400
"""Memory that a message takes in addition to its body and properties."""

Row = tuple[int, int, int, str, str, bytes, bytes]
"""The fields of `StoredMessage`; the body of a large message is written behind its row."""


class _Segment:
    __slots__ = ("blocks", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.blocks = 0


class _Block:
    """Messages that are written and read together.

    `buffers` are its bytes until they are written: packed rows, then the pieces of a large
    body; `sizes` are their lengths.
    """

    __slots__ = ("buffers", "checksum", "first_id", "last_id", "position", "segment", "sizes")

    def __init__(self, first_id: int, last_id: int, buffers: list[bytes]) -> None:
        self.first_id = first_id
        self.last_id = last_id
        self.buffers: list[bytes] | None = buffers
        self.sizes = tuple(map(len, buffers))
        self.checksum = 0
        self.segment: _Segment | None = None
        self.position = 0

    @property
    def size(self) -> int:
        return sum(self.sizes)


class SpillFolder:
    """The folder with the segments of all queues, and the thread that writes them."""

    def __init__(self, data_directory: Path, on_progress: Callable[[], None]) -> None:
        """`on_progress` is called when fewer bytes wait than before."""
        self._folder = data_directory / FOLDER
        self._on_progress = on_progress
        self._names = count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer = _Writer(self._report)
        self.unwritten_bytes = 0
        self.file_bytes = 0
        """Size of all segments, including what is not written yet."""

    def delete_all(self) -> None:
        """At the start, and at the end."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self) -> QueueSpill:
        return QueueSpill(self)

    def close(self) -> None:
        self._writer.stop()
        self.delete_all()

    def new_segment(self) -> _Segment:
        return _Segment(self._folder / str(next(self._names)))

    def write(self, block: _Block) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._writer.start()
        self.unwritten_bytes += block.size
        self.file_bytes += block.size
        self._writer.put(block)

    def delete(self, segment: _Segment) -> None:
        self.file_bytes -= segment.size
        self._writer.put(segment)

    def forget(self, block: _Block) -> None:
        """The block is written, or no longer needed."""
        if block.buffers is not None:
            block.buffers = None
            self.unwritten_bytes -= block.size
            self._on_progress()

    def _report(self, block: _Block) -> None:
        """Called on the writer thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.forget, block)


class QueueSpill:
    """The spilled messages of one queue, in order. Implements `leveret.model.store.Spill`."""

    def __init__(self, folder: SpillFolder) -> None:
        self._folder = folder
        self._blocks: list[_Block] = []
        self._head = 0  # blocks before it are no longer needed
        self._rows: list[Row] = []  # they will be the next block
        self._rows_bytes = 0
        self._segment: _Segment | None = None

    @property
    def memory_bytes(self) -> int:
        """Memory of the gathered rows; blocks that wait are part of the store's backlog."""
        return self._rows_bytes + len(self._rows) * _MESSAGE_BYTES

    # Writing -----------------------------------------------------------------------------------

    def append(self, messages: Sequence[Message]) -> None:
        rows = self._rows
        for message in messages:
            if message.large_body is None:
                rows.append(_row(message, message.body))
                self._rows_bytes += message.body_size + message.header_size
            else:
                self._seal()
                rows = self._rows
                data = _pack([_row(message, b"")])
                pieces = message.large_body.pieces
                self._add(_Block(message.id, message.id, [data, *pieces]))
        if len(rows) >= BLOCK_MESSAGES or self._rows_bytes >= BLOCK_BYTES:
            self._seal()

    def _seal(self) -> None:
        """Make a block of the gathered rows."""
        rows = self._rows
        if rows:
            self._add(_Block(rows[0][0], rows[-1][0], [_pack(rows)]))
            self._rows, self._rows_bytes = [], 0

    def _add(self, block: _Block) -> None:
        segment = self._segment
        if segment is None or segment.size >= SEGMENT_BYTES:
            self._end_segment()
            segment = self._segment = self._folder.new_segment()
        block.segment, block.position = segment, segment.size
        segment.size += block.size
        segment.blocks += 1
        self._blocks.append(block)
        self._folder.write(block)

    def _end_segment(self) -> None:
        if self._segment is not None and not self._segment.blocks:
            self._folder.delete(self._segment)
        self._segment = None

    # Reading -----------------------------------------------------------------------------------

    async def load(self, message_ids: Sequence[int]) -> dict[int, LoadResult]:
        """Those of the messages that are here, by id; the ids ascend."""
        if not message_ids:
            return {}
        first, last = message_ids[0], message_ids[-1]
        start = bisect_left(self._blocks, first, lo=self._head, key=_last_id)
        stop = bisect_right(self._blocks, last, lo=start, key=_first_id)
        blocks = self._blocks[start:stop]
        rows = list(self._rows) if self._rows and self._rows[0][0] <= last else []
        results: dict[int, LoadResult] = {}
        if blocks:
            results = await asyncio.to_thread(_read_all, blocks)
        results |= {row[0]: SpilledMessage(*row) for row in rows}
        wanted = set(message_ids)
        return {key: result for key, result in results.items() if key in wanted}

    def drop_to(self, message_id: int) -> None:
        """The messages up to this one are no longer needed."""
        blocks = self._blocks
        while self._head < len(blocks) and blocks[self._head].last_id <= message_id:
            self._drop(blocks[self._head])
            self._head += 1
        if self._head == len(blocks) or self._head > max(_COMPACT_AT, len(blocks) // 2):
            del blocks[: self._head]
            self._head = 0
        if self._rows and self._rows[0][0] <= message_id:
            gone = bisect_right(self._rows, message_id, key=_row_id)
            self._rows_bytes -= sum([len(row[5]) + len(row[6]) for row in self._rows[:gone]])
            del self._rows[:gone]

    def _drop(self, block: _Block) -> None:
        self._folder.forget(block)
        segment = block.segment
        assert segment is not None
        segment.blocks -= 1
        if not segment.blocks and segment is not self._segment:
            self._folder.delete(segment)

    def clear(self) -> None:
        for block in self._blocks[self._head :]:
            self._drop(block)
        self._end_segment()
        self._blocks, self._head = [], 0
        self._rows, self._rows_bytes = [], 0


class _Writer:
    """The thread that writes blocks and deletes segments, in the order in which it got them."""

    def __init__(self, report: Callable[[_Block], None]) -> None:
        self._report = report
        self._work_items: SimpleQueue[_Block | _Segment | None] = SimpleQueue()
        self._is_stopping = False
        self._has_warned = False
        self._thread: Thread | None = None

    def start(self) -> None:
        self._thread = Thread(target=self._run, name="leveret-spill", daemon=True)
        self._thread.start()

    def put(self, item: _Block | _Segment) -> None:
        self._work_items.put(item)

    def stop(self) -> None:
        """Drop the work that is left, and return when the thread has ended."""
        self._is_stopping = True
        self._work_items.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (item := self._work_items.get()) is not None:
            if isinstance(item, _Segment):
                with suppress(OSError):  # the next start deletes it
                    item.path.unlink()
            elif not self._is_stopping:
                self._write(item)

    def _write(self, block: _Block) -> None:
        """Try until it is written, or no longer needed."""
        buffers = block.buffers
        while buffers is not None and not self._is_stopping:
            try:
                block.checksum = _checksum(buffers)
                _write_buffers(block, buffers)
            except OSError as error:
                self._warn(error)
                time.sleep(RETRY_SECONDS)
                buffers = block.buffers
            else:
                self._has_warned = False
                self._report(block)
                return

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "cannot write transient messages to disk (%s): they stay in memory, and publishers "
                "wait; trying again",
                error,
            )


def _row(message: Message, body: bytes) -> Row:
    address = message.address
    return (
        message.id,
        message.time_ms,
        message.origin,
        address.exchange,
        address.routing_key,
        message.properties,
        body,
    )


def _checksum(buffers: Sequence[bytes]) -> int:
    checksum = 0
    for buffer in buffers:
        checksum = extend(checksum, buffer)
    return checksum


def _write_buffers(block: _Block, buffers: list[bytes]) -> None:
    assert block.segment is not None
    if not block.position:
        block.segment.path.parent.mkdir(mode=0o700, exist_ok=True)
    file = os.open(block.segment.path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        position = block.position
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                written = os.pwrite(file, view, position)
                if not written:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                view, position = view[written:], position + written
    finally:
        os.close(file)


def _read_all(blocks: Sequence[_Block]) -> dict[int, LoadResult]:
    results: dict[int, LoadResult] = {}
    for block in blocks:
        buffers = block.buffers
        try:
            results |= _decode(_read_buffers(block) if buffers is None else buffers)
        except (FileNotFoundError, ValueError) as error:
            ids = range(block.first_id, block.last_id + 1)
            results |= {i: UnreadableMessage(i, f"cannot be read back: {error}") for i in ids}
        except OSError as error:  # no file handles, for example: the caller tries again
            raise StoreError(f"cannot read spilled messages: {error}") from error
    return results


def _read_buffers(block: _Block) -> list[bytes]:
    assert block.segment is not None
    file = os.open(block.segment.path, os.O_RDONLY)
    try:
        starts = accumulate(block.sizes, initial=block.position)
        buffers = [os.pread(file, size, at) for size, at in zip(block.sizes, starts, strict=False)]
    finally:
        os.close(file)
    if _checksum(buffers) != block.checksum:
        raise ValueError("it does not match its checksum")
    return buffers


def _decode(buffers: Sequence[bytes]) -> dict[int, LoadResult]:
    messages = [SpilledMessage(*row) for row in _unpack(buffers[0])]
    if len(buffers) > 1:
        messages = [messages[0]._replace(body=LargeBody(buffers[1:]))]
    return {message.id: message for message in messages}


def _pack(rows: Sequence[Row]) -> bytes:
    """All numbers of all rows, then all texts and bytes; the numbers begin with their count."""
    ids, times, origins, exchanges, routing_keys, properties, bodies = zip(*rows, strict=True)
    names = [name.encode("utf-8", "surrogateescape") for name in (*exchanges, *routing_keys)]
    parts = (*names, *properties, *bodies)
    numbers = array("q", (len(rows), *ids, *times, *origins, *map(len, parts)))
    return b"".join((numbers.tobytes(), *parts))


def _unpack(data: bytes) -> list[Row]:
    size = int.from_bytes(data[:8], sys.byteorder)
    numbers = array("q")
    numbers.frombytes(data[8 : 8 * (1 + 7 * size)])
    ends = list(accumulate(numbers[3 * size :], initial=8 * (1 + 7 * size)))
    parts = [data[start:end] for start, end in pairwise(ends)]
    names = [part.decode("utf-8", "surrogateescape") for part in parts[: 2 * size]]
    return list(
        zip(
            numbers[:size],
            numbers[size : 2 * size],
            numbers[2 * size : 3 * size],
            names[:size],
            names[size:],
            parts[2 * size : 3 * size],
            parts[3 * size :],
            strict=True,
        )
    )


def _first_id(block: _Block) -> int:
    return block.first_id


def _last_id(block: _Block) -> int:
    return block.last_id


def _row_id(row: Row) -> int:
    return row[0]
