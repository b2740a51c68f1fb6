"""Runs the work of one event-loop tick in a fixed order, however many frames arrived in it.

While frames are handled, queues are marked ready and connections are marked as having output. At
the end of the tick the ready queues dispatch, the store gets its batch, and each connection writes
once.

A tick is kept short. An event loop may read one socket many times in a row (libuv: 32 times, up to
256 KiB each), and there may be many sockets. When the read budget of a tick is used up, input is
buffered and its reader waits in a queue for a later tick. Queues with many deliveries wait in the
same way.

Event-loop thread only; nothing here outlives the process.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from leveret.queues.port import Target

log = logging.getLogger("leveret.broker")

READ_BUDGET_SECONDS = 0.001
DISPATCH_BUDGET_SECONDS = 0.001
"""Time per tick for each of the two; then timers, HTTP requests and other tasks get to run."""
_UNEXPECTED = "unexpected error in a callback of the event loop"


class Output(Protocol):
    def flush(self) -> None:
        """Write the buffered output."""


class LoopScheduler:
    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        flush_store: Callable[[], None],
        now: Callable[[], float],
    ) -> None:
        self._call_soon = call_soon
        self._flush_store = flush_store
        self._now = now
        self._read_deadline: float | None = None
        """None: nothing was read in this tick yet."""
        self._readers: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._queues: deque[Target] = deque()
        self._outputs: dict[Output, None] = {}
        self._spare_outputs: dict[Output, None] = {}
        """Second buffer, swapped with the first to avoid an allocation in each tick."""

    def mark_ready(self, queue: Target) -> None:
        """Dispatch this queue at the end of the tick."""
        if not queue.dispatch_pending:
            queue.dispatch_pending = True
            self._queues.append(queue)
            if not self._scheduled:
                self._schedule()

    def mark_output(self, output: Output) -> None:
        """Flush this connection at the end of the tick."""
        self._outputs[output] = None
        if not self._scheduled:
            self._schedule()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call it in a later tick, after everything that is ready now."""
        self._call_soon(callback)

    def take_read_budget(self, now: float) -> bool:
        """Whether input may be handled in this tick; the first call starts the tick's budget.

        A reader that gets False buffers its input and calls `enqueue_reader`.
        """
        if self._read_deadline is None:
            self._read_deadline = now + READ_BUDGET_SECONDS
            if not self._scheduled:
                self._schedule()
            return True
        return now < self._read_deadline

    def enqueue_reader(self, resume: Callable[[], None]) -> None:
        """Call `resume` in one of the next ticks, after the readers that wait already."""
        self._readers.append(resume)
        self.schedule()

    def schedule(self) -> None:
        """Run the end of this tick, for example to hand the batch to the store."""
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._call_soon(self.run_tick)

    def run_tick(self) -> None:
        try:
            if self._readers:
                self._run_readers()
            self._read_deadline = None
            if self._queues:
                self._dispatch_queues()
            self._flush_store()
            outputs, self._outputs = self._outputs, self._spare_outputs
            for output in outputs:
                try:
                    output.flush()
                except Exception:
                    log.exception(_UNEXPECTED)
            outputs.clear()
            self._spare_outputs = outputs
        finally:
            self._scheduled = False
            if self._queues or self._outputs or self._readers:
                self._schedule()

    def _run_readers(self) -> None:
        """Run waiting readers within a new budget, at least one."""
        self._read_deadline = self._now() + READ_BUDGET_SECONDS
        call_guarded(self._readers.popleft())
        while self._readers and self._now() < self._read_deadline:
            call_guarded(self._readers.popleft())

    def _dispatch_queues(self) -> None:
        queues, deadline = self._queues, self._now() + DISPATCH_BUDGET_SECONDS
        while queues:
            try:
                queues.popleft().dispatch()
            except Exception:
                log.exception(_UNEXPECTED)
            if queues and self._now() >= deadline:
                break


def call_guarded(callback: Callable[[], None]) -> None:
    """Log an exception instead of raising it: one failure must not stop other callbacks."""
    try:
        callback()
    except Exception:
        log.exception(_UNEXPECTED)
