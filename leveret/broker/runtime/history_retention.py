"""Trims the stored history: every 30 seconds, earlier under load, and when the disk fills up.

History may use what the settings allow, but it gives way before the disk alarm blocks publishers
(`disk_space.history_reserve`).

Event-loop thread; the store does the work in slices between commits. After a crash in between, the
next pass trims the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leveret.broker.runtime.disk_space import history_reserve
from leveret.broker.runtime.process import free_disk_bytes
from leveret.model.history import Keep
from leveret.model.store import RetentionRequest
from leveret.queues.classic.classic_queue import ClassicQueue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

INTERVAL_SECONDS = 30.0
EARLY_BYTES, MIN_EARLY_BYTES = 64 << 20, 1 << 20
"""Bytes written and no longer held by queues that make an early pass worthwhile: less for a small
history."""
LOW_DISK_SECONDS, LOW_DISK_IDLE_SECONDS = 0.5, 10.0
"""Between two passes while the disk is low: after one that removed something, and after others."""


class HistoryRetention:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next_pass = broker.clock.monotonic() + INTERVAL_SECONDS
        self._written = 0
        """Bytes the store had written at the last pass."""
        self._queued = 0
        """Bytes the durable queues held at the last pass."""
        self._next_low_disk_pass = 0.0
        history = broker.settings.history_max_bytes
        self._early_bytes = min(EARLY_BYTES, max(MIN_EARLY_BYTES, history // 4))
        self._min_free = history_reserve(broker.settings.disk_free_limit)

    async def apply_if_due(self) -> None:
        now = self._broker.clock.monotonic()
        if now >= self._next_pass or self._is_disk_low(now) or self._is_early_pass_worthwhile():
            self._next_pass = now + INTERVAL_SECONDS
            await self.apply()

    def _free_bytes(self) -> int:
        try:
            return free_disk_bytes(self._broker.settings.data_dir)
        except FileNotFoundError:
            return self._min_free  # the directory was renamed: an alarm tells

    def _is_disk_low(self, now: float) -> bool:
        """Whether history must give way now. A pass that finds nothing is not repeated at once."""
        settings = self._broker.settings
        if settings.memory or self._free_bytes() >= self._min_free:
            return False
        return now >= self._next_low_disk_pass or self._settled_bytes() >= self._early_bytes

    def _settled_bytes(self) -> int:
        """Bytes that became history since the last pass, approximately."""
        queued = _queued_bytes(self._broker.topology.durable_queues())
        return self._broker.store.bytes_appended - self._written - (queued - self._queued)

    def _is_early_pass_worthwhile(self) -> bool:
        """Under load the database would grow by everything written between two passes.

        The cost of a pass grows with what the queues hold, and so does this threshold.
        """
        broker = self._broker
        written = broker.store.bytes_appended - self._written
        if written < self._early_bytes:
            return False
        queues = broker.topology.durable_queues()
        queued = _queued_bytes(queues)
        if written - (queued - self._queued) < max(self._early_bytes, queued // 4):
            return False
        limit = broker.settings.history_max_bytes + queued
        return broker.store.usage.bytes + written > limit or any(
            queue.keep is not Keep.FULL for queue in queues
        )

    async def apply(self) -> None:
        broker = self._broker
        queues = broker.topology.durable_queues()
        self._written, self._queued = broker.store.bytes_appended, _queued_bytes(queues)
        live = [queue.live() for queue in queues]
        for delay_queue in broker.plugin_exchanges.delay_queues.by_exchange.values():
            live += delay_queue.live()
        settings = broker.settings
        usage = await broker.store.apply_retention(
            RetentionRequest(
                upto=max(0, next(broker.store.ids) - 1),
                live=tuple(part.ids for part in live),
                live_bytes=sum(sum(part.sizes) for part in live),
                before_ms=broker.clock.wall_ms() - int(settings.history_max_age * 1000),
                max_bytes=settings.history_max_bytes,
                min_free_bytes=self._min_free,
            )
        )
        pause = LOW_DISK_SECONDS if usage.removed else LOW_DISK_IDLE_SECONDS
        self._next_low_disk_pass = broker.clock.monotonic() + pause


def _queued_bytes(queues: Iterable[ClassicQueue]) -> int:
    return sum(queue.message_bytes + queue.unacked_bytes for queue in queues)
