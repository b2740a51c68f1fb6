"""One alarm clock for all queues: no timer per message or queue.

A queue asks to be looked at not later than some moment; looking is `touch`, and what to do then is
the queue's own affair. Asking too early only costs a look.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from leveret.model.clock import Clock
from queues import Target

LONGEST_SLEEP_SECONDS = 60.0


class Deadlines:
    def __init__(self, clock: Clock, touch: Callable[[Target], None]) -> None:
        self._clock = clock
        self._touch = touch
        self._heap: list[tuple[int, int, Target]] = []
        self._asked: dict[Target, int] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def look_at(self, time_ms: int, queue: Target) -> None:
        """Touch this queue when the wall clock says `time_ms`."""
        asked = self._asked.get(queue)
        if asked is not None and asked <= time_ms:
            return
        self._asked[queue] = time_ms
        self._count += 1
        heapq.heappush(self._heap, (time_ms, self._count, queue))
        if self._timer is None or time_ms < self._timer_ms:
            self._set_timer(time_ms)

    @property
    def next_ms(self) -> int | None:
        """When the next queue wants to be looked at."""
        return self._heap[0][0] if self._heap else None

    def run(self) -> None:
        """Touch every queue whose moment has come."""
        now = self._clock.wall_ms()
        while self._heap and self._heap[0][0] <= now:
            time_ms, _, queue = heapq.heappop(self._heap)
            if self._asked.get(queue) == time_ms:
                del self._asked[queue]
                self._touch(queue)
        if self._heap:
            self._set_timer(self._heap[0][0])
        else:
            self.stop()

    def _set_timer(self, time_ms: int) -> None:
        self.stop()
        wait = max(0.0, (time_ms - self._clock.wall_ms()) / 1000)
        loop = asyncio.get_running_loop()
        self._timer_ms = time_ms
        self._timer = loop.call_later(min(wait, LONGEST_SLEEP_SECONDS), self.run)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
