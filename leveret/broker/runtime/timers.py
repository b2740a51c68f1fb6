"""One event-loop timer for all queues, instead of one per message or queue.

A queue asks to be woken at a wall-clock time at the latest; to wake it is to mark it ready, and it
decides in `dispatch` what is due. Waking it too early only costs that check. Event-loop thread
only; after a restart queues ask again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from leveret.model.clock import Clock
from leveret.queues.port import Target

MAX_SLEEP_SECONDS = 60.0
MAX_CANCELLED = 1_000
"""Cancelled entries that may stay in the heap, in addition to as many as there are active ones."""


class Timers:
    def __init__(self, clock: Clock, mark_ready: Callable[[Target], None]) -> None:
        self._clock = clock
        self._mark_ready = mark_ready
        self._heap: list[tuple[int, int]] = []
        """Wake-up time and entry number."""
        self._by_queue: dict[Target, tuple[int, int]] = {}
        self._by_number: dict[int, Target] = {}
        self._last_number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def wake_at(self, time_ms: int, queue: Target) -> None:
        """Mark this queue ready at `time_ms`, unless it is woken earlier anyway."""
        entry = self._by_queue.get(queue)
        if entry is not None:
            if entry[0] <= time_ms:
                return
            del self._by_number[entry[1]]
        self._last_number += 1
        self._by_queue[queue] = (time_ms, self._last_number)
        self._by_number[self._last_number] = queue
        heapq.heappush(self._heap, (time_ms, self._last_number))
        if self._timer is None or time_ms < self._timer_ms:
            self._set_timer(time_ms)

    def cancel(self, queue: Target) -> None:
        """Drop the reference to a deleted queue now, not at its wake-up time."""
        entry = self._by_queue.pop(queue, None)
        if entry is not None:
            del self._by_number[entry[1]]
            if len(self._heap) > 2 * len(self._by_number) + MAX_CANCELLED:
                self._heap = [entry for entry in self._heap if entry[1] in self._by_number]
                heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The next wake-up time."""
        return self._heap[0][0] if self._heap else None

    def run(self) -> None:
        """Mark every queue ready whose wake-up time has come."""
        now = self._clock.wall_ms()
        while self._heap and self._heap[0][0] <= now:
            queue = self._by_number.pop(heapq.heappop(self._heap)[1], None)
            if queue is not None:
                del self._by_queue[queue]
                self._mark_ready(queue)
        if self._heap:
            self._set_timer(self._heap[0][0])
        else:
            self.stop()

    def _set_timer(self, time_ms: int) -> None:
        self.stop()
        wait = max(0.0, (time_ms - self._clock.wall_ms()) / 1000)
        loop = asyncio.get_running_loop()
        self._timer_ms = time_ms
        self._timer = loop.call_later(min(wait, MAX_SLEEP_SECONDS), self.run)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
