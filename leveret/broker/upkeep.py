"""What has to be done now and then: watch memory and disk, trim history."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from leveret.broker.dead_letters import watch_stuck
from leveret.broker.metrics import SAMPLE_MS
from leveret.broker.standstill import Standstill
from leveret.broker.watermark import (
    LONGEST_SECONDS,
    SHARE_WHEN_FULL,
    Pace,
    Watermark,
    header_bytes,
    resident_bytes,
)
from leveret.model.errors import PreconditionFailed
from leveret.model.history import Keep
from leveret.model.store import Retention, StoreState
from queues import ClassicQueue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

log = logging.getLogger("leveret.broker")

SWEEP_SECONDS = 30.0
SWEEP_BYTES = 64 << 20
"""When so much has come and gone, a sweep is worth it before its time."""
LOOKS_AHEAD, MOST_LOOKS = 4, 64
"""Memory is looked at when a fourth of what is left may have come, of the watermark a 64th."""
MESSAGE_OVERHEAD = 400
"""Octets a message in memory costs beside its body and long headers, roughly."""


class Upkeep:
    """One task for the whole broker; nothing per queue or connection."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.stuck: dict[ClassicQueue, VirtualHost] = {}
        """Queues whose dead letters find no room."""
        self._tasks: list[asyncio.Task[None]] = []
        self._next_sweep = broker.clock.monotonic() + SWEEP_SECONDS
        self._written = self._held = 0
        """What the store had taken and the queues held at the last sweep, in octets."""
        self._sampled_ms = 0
        self._watermark = Watermark(broker.settings.memory_high_watermark)
        self._standstill = Standstill()
        self._aside = 0
        """In headers, in replies that nobody reads, in what is delayed, in what has not come whole.
        Looked for only when the process takes more than it may: usually it is little."""
        self._kept_back = 0
        self._pace_of_memory, self._pace_of_disk = Pace(), Pace()
        self._pause = LONGEST_SECONDS
        self._unseen = 0
        """Octets that may come from publishers before memory is looked at again."""

    def start(self) -> None:
        """Two tasks: a long sweep must not keep the alarms waiting."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(step)) for step in (self._look, self._sweep)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._pause)
            try:
                await step()
            except Exception:
                log.exception("upkeep failed; trying again")

    async def _look(self) -> None:
        self.watch()
        self._sample()
        self._broker.log_keeper.tidy_if_due()

    async def _sweep(self) -> None:
        if self._broker.clock.monotonic() >= self._next_sweep or self._is_sweep_worth_it():
            self._next_sweep = self._broker.clock.monotonic() + SWEEP_SECONDS
            await self.sweep()

    def _is_sweep_worth_it(self) -> bool:
        """Under load the file would grow by all that comes between two sweeps. What a sweep costs
        grows with what the queues hold, and so does what must have gone."""
        broker = self._broker
        came = broker.store.written - self._written
        if came < SWEEP_BYTES:
            return False
        queues = broker.durable_queues()
        held = _held(queues)
        if came - (held - self._held) < max(SWEEP_BYTES, held // 4):
            return False
        limit = broker.settings.history_max_bytes + held
        return broker.store.usage.bytes + came > limit or any(
            queue.keep is not Keep.FULL for queue in queues
        )

    def _sample(self) -> None:
        now = self._broker.clock.wall_ms()
        if now - self._sampled_ms >= SAMPLE_MS:
            self._sampled_ms = now
            with self._broker.apart:
                self._broker.metrics.sample()

    def watch(self) -> None:
        """Raise or clear the memory and disk alarms."""
        self._pause = self._watch_memory()
        watch_stuck(self._broker)
        if not self._broker.settings.memory:
            self._pause = min(self._pause, self._watch_disk())

    def came(self, octets: int) -> None:
        """From publishers: in the time between two looks they may send more than there is room."""
        self._unseen -= octets
        if self._unseen < 0:
            self._watch_memory()

    def _watch_memory(self) -> float:
        """Seconds until the next look."""
        broker, mark = self._broker, self._watermark
        limit, resident = broker.settings.memory_high_watermark, resident_bytes()
        self._aside = self._measure_aside() if resident > limit else 0
        held = self.memory_held()
        reason = f"low on memory: {held} octets in messages, {resident} in all, {limit} allowed"
        is_low = mark.look(held, resident)
        self._unseen = limit if is_low else max(mark.room // LOOKS_AHEAD, limit // MOST_LOOKS)
        broker.alarms.set("memory", reason if is_low else "")
        now = broker.clock.monotonic()
        self._standstill.look(broker.connections, mark.excess, now)
        return self._pace_of_memory.next_look(mark.room, now)

    def _watch_disk(self) -> float:
        """Seconds until the next look."""
        broker = self._broker
        free = shutil.disk_usage(broker.settings.data_dir).free
        limit = broker.settings.disk_free_limit
        if free < limit:
            broker.alarms.set("disk", f"low on disk: {free} octets free, {limit} wanted")
        elif broker.store.state is StoreState.RUNNING:
            broker.alarms.set("disk", "")
        return self._pace_of_disk.next_look(free - limit, broker.clock.monotonic())

    def memory_held(self) -> int:
        """Octets in messages held in memory."""
        return (
            self._broker.store.in_memory
            + self._aside
            + sum(
                queue.ready_bytes
                + queue.unacked_bytes
                + (len(queue.ready) + len(queue.unacked)) * MESSAGE_OVERHEAD
                for queue in self._classic_queues()
            )
        )

    def _measure_aside(self) -> int:
        headers = sum(
            header_bytes(len(queue.ready), queue.ready)
            + header_bytes(len(queue.unacked), queue.unacked.values())
            for queue in self._classic_queues()
            if queue.ready or queue.unacked
        )
        vhosts = self._broker.vhosts.values()
        replies = sum(one.held_bytes for vhost in vhosts for one in vhost.reply_queues.values())
        stations = self._broker.stations
        delays = stations.delays.by_exchange.values()
        kept = sum([one.kept for one in self._broker.connections])
        aside = headers + replies + kept + stations.remembered_bytes
        return aside + sum(one.held_bytes for one in delays)

    def _classic_queues(self) -> Iterator[ClassicQueue]:
        for vhost in self._broker.vhosts.values():
            for queue in vhost.queues.values():
                if isinstance(queue, ClassicQueue):
                    yield queue

    def keep_back(self, octets: int) -> None:
        """Room for messages that wait for a commit: a client that may not be read cannot commit,
        so these are refused and not waited for."""
        most = int(self._broker.settings.memory_high_watermark * SHARE_WHEN_FULL)
        if self._kept_back + octets > most:
            raise PreconditionFailed(
                f"messages of open transactions would take more than {most} octets:"
                " commit more often"
            )
        self._kept_back += octets

    def let_go(self, octets: int) -> None:
        """They wait no longer."""
        self._kept_back -= octets

    async def sweep(self) -> None:
        """Trim history to what the settings let it keep."""
        broker = self._broker
        queues = broker.durable_queues()
        self._written, self._held = broker.store.written, _held(queues)
        live = [queue.live() for queue in queues]
        for delayed in broker.stations.delays.by_exchange.values():
            live += delayed.live()
        settings = broker.settings
        await broker.store.sweep(
            Retention(
                upto=max(0, next(broker.store.ids) - 1),
                live=tuple(part.ids for part in live),
                live_bytes=sum(sum(part.sizes) for part in live),
                before_ms=broker.clock.wall_ms() - int(settings.history_max_age * 1000),
                max_bytes=settings.history_max_bytes,
            )
        )


def _held(queues: Iterable[ClassicQueue]) -> int:
    return sum(queue.message_bytes + queue.unacked_bytes for queue in queues)
