"""Watches memory, disk space and the store's backlog, and decides what pauses or closes publishers.

What pauses all publishers:

- the memory alarm: messages in memory are over the watermark (`MemoryWatermark`);
- the disk alarm: less disk space is free than `disk_free_limit`, although history has given way
  (`HistoryRetention`);
- the store's backlog: more than `BACKLOG_HIGH` bytes wait to be written; reading goes on when they
  are below `BACKLOG_LOW`.

What pauses a single connection is in `amqp_server/flow_control.py` (`PauseReason`). What closes
one: a memory alarm that only incomplete messages keep up (`IncompleteMessageLimit`). Event-loop
thread only; nothing here outlives the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from leveret.broker.metrics import SAMPLE_MS
from leveret.broker.runtime.disk_space import DiskUsage, available_bytes, measure_usage
from leveret.broker.runtime.history_retention import HistoryRetention
from leveret.broker.runtime.process import free_disk_bytes, resident_bytes
from leveret.broker.runtime.slices import Steps, run_in_slices
from leveret.model.errors import PreconditionFailed
from leveret.model.store import StoreState
from leveret.queues.port import Queue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

log = logging.getLogger("leveret.broker")

BACKLOG_HIGH = 8 * 1024 * 1024
BACKLOG_LOW = 2 * 1024 * 1024

SHARE_WHEN_FULL = 0.5
"""Share of the memory limit left to messages once the whole process is over the limit."""
CLEAR_SHARE = 0.9
"""The alarm is cleared when messages are below this share of what they may use."""
MAX_CHECK_SECONDS = 0.25
MIN_CHECK_SECONDS = 0.02
CHECKS_AHEAD, CHECKS_PER_LIMIT = 4, 64
"""Memory is also checked after a fourth of the headroom was received, but not more often than 64
times per limit."""
INCOMPLETE_SECONDS = 30.0
DISK_USAGE_SECONDS = 5.0


class MemoryWatermark:
    """Whether messages use too much memory.

    The bytes of messages are counted, those of headers approximately; the memory of the process is
    measured. Messages alone may use the whole limit; once the process is over the limit, messages
    may use half of it. It cannot be less: freed memory often stays with the process, and publishers
    must not wait for its return.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.is_exceeded = False
        self.headroom = limit
        """Bytes that may still be received before the watermark is exceeded."""
        self.excess = 0
        """Bytes that must be freed before publishers are read again; 0 while they are read."""

    def update(self, message_bytes: int, resident: int) -> None:
        is_process_over = resident > self.limit
        allowed = self.limit * SHARE_WHEN_FULL if is_process_over else self.limit
        self.headroom = int(allowed - message_bytes)
        if not is_process_over:
            self.headroom = min(self.headroom, self.limit - resident)
        if message_bytes > allowed or not self.limit:  # a limit of 0 blocks publishers at once
            self.is_exceeded = True
        elif message_bytes < allowed * CLEAR_SHARE:
            self.is_exceeded = False
        self.excess = int(message_bytes - allowed * CLEAR_SHARE) + 1 if self.is_exceeded else 0


class CheckInterval:
    """Checks again after half the time in which the headroom would be used up at the last rate."""

    def __init__(self) -> None:
        self._headroom, self._checked_at = 0, 0.0

    def next_seconds(self, headroom: int, now: float) -> float:
        used, elapsed = self._headroom - headroom, now - self._checked_at
        self._headroom, self._checked_at = headroom, now
        if headroom <= 0 or used <= 0:
            return MAX_CHECK_SECONDS
        return min(MAX_CHECK_SECONDS, max(MIN_CHECK_SECONDS, headroom / used * elapsed / 2))


class Sender(Protocol):
    @property
    def pending_bytes(self) -> int:
        """Bytes of incomplete messages and of methods that wait."""

    def close(self, reason: str) -> None:
        """Close the connection; it has no pending bytes after that."""


class IncompleteMessageLimit:
    """Ends a memory alarm that would never end by itself.

    Consumers free the memory of messages in queues, but nothing frees that of incomplete messages:
    their publishers are not read during the alarm. If incomplete messages alone keep the alarm up
    for 30 seconds, the connection with the most of them is closed, then the next one.
    """

    def __init__(self) -> None:
        self._since = 0.0

    def enforce(self, connections: Iterable[Sender], excess: int, now: float) -> None:
        """`excess` is what must be freed before publishers are read again."""
        if not excess:
            self._since = 0.0
            return
        pending = {connection: connection.pending_bytes for connection in connections}
        if sum(pending.values()) < excess:  # the memory has to be freed elsewhere
            self._since = 0.0
        elif not self._since:
            self._since = now
        elif now - self._since >= INCOMPLETE_SECONDS:
            largest = max(pending, key=pending.__getitem__)
            largest.close(
                f"connection closed: memory alarm and {pending[largest]} bytes of "
                "incomplete messages"
            )


class PausedPublisher(Protocol):
    def on_backlog_drained(self) -> None:
        """The store has caught up: read from this connection again."""


class ReadAllowance:
    """Bytes that publishers may send before memory is checked again, between two timed checks.

    Connections subtract what they receive, and check memory when the allowance is used up.
    """

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class ResourceMonitor:
    """Two tasks for the whole broker, so that long retention passes delay no alarm."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.history_retention = HistoryRetention(broker)
        self._tasks: list[asyncio.Task[None]] = []
        self._watermark = MemoryWatermark(broker.settings.memory_high_watermark)
        self._incomplete_limit = IncompleteMessageLimit()
        self._memory_interval, self._disk_interval = CheckInterval(), CheckInterval()
        self._check_seconds = MAX_CHECK_SECONDS
        self.read_allowance = ReadAllowance()
        self._bytes_outside_queues = 0
        """Measured only while the process is over its limit; usually it is little."""
        self._transaction_bytes = 0
        self._paused_publishers: dict[PausedPublisher, None] = {}
        self._sampled_ms = 0
        self._disk_usage: DiskUsage | None = None
        self._disk_measured = 0.0

    # Tasks -------------------------------------------------------------------------------------

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        steps = (self._check_and_sample, self.history_retention.apply_if_due)
        self._tasks = [loop.create_task(self._repeat(step)) for step in steps]
        self._tasks.append(loop.create_task(self._broker.topology.read_heads()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._check_seconds)
            try:
                await step()
            except Exception:
                log.exception("resource monitor: a check failed and will be repeated")

    async def _check_and_sample(self) -> None:
        self.check(await run_in_slices(self._memory_in_queues()))
        now = self._broker.clock.wall_ms()
        if now - self._sampled_ms >= SAMPLE_MS:
            self._sampled_ms = now
            await asyncio.sleep(0)
            await run_in_slices(self._broker.metrics.sample_steps())
        self._broker.log_manager.clean_if_due()

    # Memory and disk alarms --------------------------------------------------------------------

    def check(self, in_queues: int | None = None) -> None:
        """Raise or clear the alarms for memory, disk space and stuck dead letters.

        `in_queues` is the memory that messages in queues use, if it is known.
        """
        self._check_seconds = self.check_memory(in_queues)
        self._broker.dead_letters.check_stuck_queues()
        if not self._broker.settings.memory:
            self._check_seconds = min(self._check_seconds, self._check_disk())

    @property
    def memory_limit(self) -> int:
        """The setting `memory_high_watermark`, or what was set since the start."""
        return self._watermark.limit

    def set_memory_limit(self, limit: int) -> None:
        """Change the limit until the next start; alarms are raised or cleared at once."""
        self._watermark.limit = limit
        self.check_memory()

    def check_memory(self, in_queues: int | None = None) -> float:
        """Raise or clear the memory alarm; returns seconds until the next check."""
        broker, watermark = self._broker, self._watermark
        limit, resident = watermark.limit, resident_bytes()
        self._bytes_outside_queues = self._measure_outside_queues() if resident > limit else 0
        used = self.message_memory(in_queues)
        watermark.update(used, resident)
        if watermark.is_exceeded:
            self.read_allowance.bytes = limit
            broker.alarms.set(
                "memory",
                f"low on memory: messages use {used} bytes, the process {resident}, "
                f"the limit is {limit}",
            )
        else:
            self.read_allowance.bytes = max(
                watermark.headroom // CHECKS_AHEAD, limit // CHECKS_PER_LIMIT
            )
            broker.alarms.set("memory", "")
        now = broker.clock.monotonic()
        self._incomplete_limit.enforce(broker.connections, watermark.excess, now)
        return self._memory_interval.next_seconds(watermark.headroom, now)

    def _check_disk(self) -> float:
        """Seconds until the next check."""
        broker = self._broker
        try:
            free = free_disk_bytes(broker.settings.data_dir)
        except FileNotFoundError:
            self._on_missing_directory()
            return MAX_CHECK_SECONDS
        limit = broker.settings.disk_free_limit
        available = available_bytes(free, broker.store.database_size.free, limit)
        if available < limit:
            reason = f"low on disk: {available} bytes free, the limit is {limit}"
            broker.alarms.set("disk", reason, details=self._disk_details())
        elif broker.store.state is StoreState.RUNNING:
            broker.alarms.set("disk", "")
        return self._disk_interval.next_seconds(available - limit, broker.clock.monotonic())

    def _on_missing_directory(self) -> None:
        """Open files still work, so nothing is lost yet; new files could not be created."""
        reason = (
            f"the data directory {self._broker.settings.data_dir} is gone: rename it back, or "
            "stop the broker and start it with --data-dir and the new name"
        )
        self._broker.alarms.set("disk", reason)

    def _disk_details(self) -> str:
        """What uses the volume, and how to free space."""
        usage = self.disk_usage()
        remedies = [*usage.remedies(), "enlarge the volume", "or lower disk_free_limit"]
        return f"{usage}. To free space: {', '.join(remedies)}"

    def disk_usage(self) -> DiskUsage:
        """What uses the volume of the data directory; at most a few seconds old."""
        now = self._broker.clock.monotonic()
        if self._disk_usage is None or now - self._disk_measured >= DISK_USAGE_SECONDS:
            self._disk_usage, self._disk_measured = measure_usage(self._broker), now
        return self._disk_usage

    def free_disk(self) -> int:
        """Bytes free where data is stored, or in the current directory; 0 if unknown."""
        settings = self._broker.settings
        try:
            return free_disk_bytes(Path.cwd() if settings.memory else settings.data_dir)
        except OSError:
            return 0

    def _memory_in_queues(self) -> Steps[int]:
        total = 0
        for queue in list(self._queues()):
            total += queue.memory_bytes()
            yield
        return total

    def message_memory(self, in_queues: int | None = None) -> int:
        """Bytes of memory that messages use, approximately."""
        if in_queues is None:
            in_queues = sum([queue.memory_bytes() for queue in self._queues()])
        return self._broker.store.memory_bytes + self._bytes_outside_queues + in_queues

    def _measure_outside_queues(self) -> int:
        """Bytes of headers, unread replies, delayed, remembered and incomplete messages."""
        headers = sum([queue.header_bytes() for queue in self._queues()])
        vhosts = self._broker.vhosts.values()
        replies = sum(
            queue.memory_bytes() for vhost in vhosts for queue in vhost.reply_queues.values()
        )
        plugins = self._broker.plugin_exchanges
        delay_queues = plugins.delay_queues.by_exchange.values()
        delayed = sum(queue.memory_bytes() for queue in delay_queues)
        pending = sum([connection.pending_bytes for connection in self._broker.connections])
        return headers + replies + delayed + pending + plugins.remembered_bytes

    def _queues(self) -> Iterator[Queue]:
        for vhost in self._broker.vhosts.values():
            yield from vhost.queues.values()

    # Open transactions -------------------------------------------------------------------------

    def reserve_transaction_bytes(self, size: int) -> None:
        """Reserve memory for messages of an open transaction, or refuse them.

        They are refused and not paused: a client that is not read cannot commit.
        """
        limit = int(self._watermark.limit * SHARE_WHEN_FULL)
        if self._transaction_bytes + size > limit:
            raise PreconditionFailed(
                f"open transactions would hold more than {limit} bytes of messages: "
                "commit more often"
            )
        self._transaction_bytes += size

    def release_transaction_bytes(self, size: int) -> None:
        """The transaction was committed or rolled back."""
        self._transaction_bytes -= size

    # Store backlog -----------------------------------------------------------------------------

    def pause_until_backlog_drained(self, publisher: PausedPublisher) -> None:
        """Resume this publisher when less than `BACKLOG_LOW` bytes wait to be written."""
        self._paused_publishers[publisher] = None

    def resume_if_backlog_drained(self) -> None:
        if self._paused_publishers and self._broker.store.backlog < BACKLOG_LOW:
            publishers, self._paused_publishers = self._paused_publishers, {}
            for publisher in publishers:
                publisher.on_backlog_drained()
