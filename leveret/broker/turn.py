"""What is done once per loop turn, however many frames came in.

Frames mark queues as touched and connections as having something to say; at the end of the turn
the touched queues hand out, the store gets the batch, and connections write once each.

A turn of the loop is kept short: an event loop may read one socket many times in a row (libuv
thirty-two times, a quarter of a megabyte each), and there may be many sockets. What is read when
the time is up is put off, and who sent it waits in a line. So do queues that have much to hand out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from queues import Target

log = logging.getLogger("leveret.broker")

READING_SECONDS = 0.001
HANDING_OUT_SECONDS = 0.001
"""So long may each of them take; then it is the turn of timers, HTTP and whoever else waits."""


class Output(Protocol):
    def flush(self) -> None:
        """Write what has gathered."""


class Turn:
    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        flush_store: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._soon = soon
        self._flush_store = flush_store
        self._now = now
        self._reading_until: float | None = None
        """None: nobody has read in this turn."""
        self._line: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._queues: deque[Target] = deque()
        self._outputs: dict[Output, None] = {}
        self._spare_outputs: dict[Output, None] = {}
        """Empty, to take turns with: what lasts is not made anew among what comes and goes."""

    def touch(self, queue: Target) -> None:
        """This queue may have something to hand out."""
        if not queue.touched:
            queue.touched = True
            self._queues.append(queue)
            if not self._scheduled:
                self._schedule()

    def speak(self, output: Output) -> None:
        """This connection has gathered something to write."""
        self._outputs[output] = None
        if not self._scheduled:
            self._schedule()

    def later(self, call: Callable[[], None]) -> None:
        """Call it behind all that is ready now, in a turn of its own."""
        self._soon(call)

    def has_time(self, now: float) -> bool:
        """May what was read be looked at now? Else who sent it has to `wait_in_line`."""
        if self._reading_until is None:
            self._reading_until = now + READING_SECONDS
            self.schedule()
            return True
        return now < self._reading_until

    def wait_in_line(self, go_on: Callable[[], None]) -> None:
        """Call it in one of the next turns, behind all who wait already."""
        self._line.append(go_on)
        self.schedule()

    def schedule(self) -> None:
        """There is something to do at the end of the turn, as for the store's batch."""
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._soon(self.end)

    def end(self) -> None:
        try:
            self._let_in()
            self._hand_out()
            self._flush_store()
            outputs, self._outputs = self._outputs, self._spare_outputs
            for output in outputs:
                _guarded(output.flush)
            outputs.clear()
            self._spare_outputs = outputs
        finally:
            self._scheduled = False
            if self._queues or self._outputs or self._line:
                self._schedule()

    def _let_in(self) -> None:
        """Of those who wait, as many as there is time for; then time for reading begins anew."""
        if self._line:
            self._reading_until = self._now() + READING_SECONDS
            _guarded(self._line.popleft())
            while self._line and self._now() < self._reading_until:
                _guarded(self._line.popleft())
        self._reading_until = None

    def _hand_out(self) -> None:
        over = self._now() + HANDING_OUT_SECONDS
        while self._queues:
            _guarded(self._queues.popleft().dispatch)
            if self._queues and self._now() >= over:
                break


def _guarded(step: Callable[[], None]) -> None:
    """One queue or connection that fails is our bug, but must not stop all the others."""
    try:
        step()
    except Exception:
        log.exception("unexpected error in a turn")
