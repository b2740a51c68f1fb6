"""The volume of the data directory: how much of it is free, what uses it, and how to free it.

History gives way to everything else: it is trimmed when less than `history_reserve` bytes are free,
which is before the disk alarm blocks publishers. Free pages of the database count as free space for
the alarm, because new messages use them first; not all of them, because logs cannot use them.
Event-loop thread only; figures are approximate, and nothing here outlives the process.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leveret.model.quantities import approximate_size
from leveret.queues.storage.directory import WAL_NAME

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

MIN_RESERVE: Final = 32 << 20
"""The write-ahead log may grow by this much before history can be trimmed."""
USUAL_WAL_BYTES: Final = 64 << 20
"""The write-ahead log becomes larger than this only while somebody reads the database."""
ROW_BYTES: Final = 100
"""What a stored message takes beside its body: its row, its properties, its events."""
WORTH_MENTIONING: Final = 0.05
"""Remedies are named for what uses at least this share of the volume."""


def history_reserve(disk_free_limit: int) -> int:
    """Free space below which history is trimmed: the limit of the alarm and a quarter of it."""
    return disk_free_limit + max(MIN_RESERVE, disk_free_limit // 4)


def available_bytes(free: int, free_pages: int, disk_free_limit: int) -> int:
    """Free space for the alarm; at least half of the limit must be free for files other than
    the database."""
    return free + min(free_pages, disk_free_limit // 2)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of the volume, by use. `messages`: those in queues, spilled ones, and delayed ones.

    `free_pages` are pages of the database without content; `wal` is its write-ahead log; `other`
    is everything on the volume that does not belong to this broker.
    """

    total: int
    free: int
    messages: int
    history: int
    free_pages: int
    wal: int
    logs: int
    other: int

    def __str__(self) -> str:
        uses = ", ".join(f"{name} {approximate_size(size)}" for name, size in self._uses())
        return f"of {approximate_size(self.total)}, {uses} and free {approximate_size(self.free)}"

    def remedies(self) -> list[str]:
        """What to do about the largest uses, largest first."""
        remedies = [
            (
                self.messages,
                "consume or purge large queues (leveret list_queues name messages message_bytes)",
            ),
            (self.history, "wait while old history is deleted"),
            (self.logs, "limit logs by a policy with max-age or max-length-bytes"),
            (max(0, self.wal - USUAL_WAL_BYTES), "end long reads of the history"),
            (self.other, "delete other files on the volume"),
        ]
        large = [each for each in remedies if each[0] >= self.total * WORTH_MENTIONING]
        return [remedy for _, remedy in sorted(large, reverse=True)]

    def _uses(self) -> Iterator[tuple[str, int]]:
        yield "messages in queues use", self.messages
        yield "history", self.history
        yield "logs", self.logs
        yield "the write-ahead log", self.wal
        yield "free pages of the database", self.free_pages
        yield "other files", self.other


def measure_usage(broker: Broker) -> DiskUsage:
    directory, size = broker.settings.data_dir, broker.store.database_size
    try:
        total, used, free = shutil.disk_usage(directory)
    except FileNotFoundError:  # the directory was renamed: an alarm tells
        total = used = free = 0
    stored, spilled = min(_live_bytes(broker), size.used), broker.store.spilled_bytes
    wal = _file_size(directory / WAL_NAME)
    logs = sum(queue.partition.size for queue in broker.log_manager.queues)
    own = size.used + size.free + wal + logs + spilled
    return DiskUsage(
        total=total,
        free=free,
        messages=stored + spilled,
        history=size.used - stored,
        free_pages=size.free,
        wal=wal,
        logs=logs,
        other=max(0, used - own),
    )


def _live_bytes(broker: Broker) -> int:
    """Bytes of the messages in durable queues and of delayed messages, on disk."""
    size = count = 0
    for queue in broker.topology.durable_queues():
        size += queue.message_bytes + queue.unacked_bytes
        count += queue.ready_count + queue.unacked_count
    for delayed in broker.plugin_exchanges.delay_queues.by_exchange.values():
        size += delayed.stored_bytes()
        count += len(delayed)
    return size + count * ROW_BYTES


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
