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
FORGOTTEN_AT_MOST = 1_000
"""So many moments that nobody waits for any more may stay beside as many as are waited for."""


class Deadlines:
    def __init__(self, clock: Clock, touch: Callable[[Target], None]) -> None:
        self._clock = clock
        self._touch = touch
        self._heap: list[tuple[int, int]] = []
        self._asked: dict[Target, tuple[int, int]] = {}
        """When, and under which number in the heap."""
        self._asking: dict[int, Target] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def look_at(self, time_ms: int, queue: Target) -> None:
        """Touch this queue when the wall clock says `time_ms`."""
        asked = self._asked.get(queue)
        if asked is not None:
            if asked[0] <= time_ms:
                return
            del self._asking[asked[1]]
        self._count += 1
        self._asked[queue] = (time_ms, self._count)
        self._asking[self._count] = queue
        heapq.heappush(self._heap, (time_ms, self._count))
        if self._timer is None or time_ms < self._timer_ms:
            self._set_timer(time_ms)

    def forget(self, queue: Target) -> None:
        """It has gone, and must not be kept until the moment it asked for."""
        asked = self._asked.pop(queue, None)
        if asked is not None:
            del self._asking[asked[1]]
            if len(self._heap) > 2 * len(self._asking) + FORGOTTEN_AT_MOST:
                self._heap = [one for one in self._heap if one[1] in self._asking]
                heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        """When the next queue wants to be looked at."""
        return self._heap[0][0] if self._heap else None

    def run(self) -> None:
        """Touch every queue whose moment has come."""
        now = self._clock.wall_ms()
        while self._heap and self._heap[0][0] <= now:
            queue = self._asking.pop(heapq.heappop(self._heap)[1], None)
            if queue is not None:
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
