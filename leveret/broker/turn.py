"""What is done once per loop turn, however many frames came in.

Frames mark queues as touched and connections as having something to say; at the end of the turn
the touched queues hand out, the store gets the batch, and connections write once each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from queues import Target

log = logging.getLogger("leveret.broker")


class Output(Protocol):
    def flush(self) -> None:
        """Write what has gathered."""


class Turn:
    def __init__(
        self, soon: Callable[[Callable[[], None]], object], flush_store: Callable[[], None]
    ) -> None:
        self._soon = soon
        self._flush_store = flush_store
        self._scheduled = False
        self._queues: list[Target] = []
        self._outputs: dict[Output, None] = {}
        self._spare_queues: list[Target] = []
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

    def schedule(self) -> None:
        """Something joined the store's batch: let the turn end."""
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._soon(self.end)

    def end(self) -> None:
        try:
            while self._queues:
                touched, self._queues = self._queues, self._spare_queues
                for queue in touched:
                    _guarded(queue.dispatch)
                touched.clear()
                self._spare_queues = touched
            self._flush_store()
            outputs, self._outputs = self._outputs, self._spare_outputs
            for output in outputs:
                _guarded(output.flush)
            outputs.clear()
            self._spare_outputs = outputs
        finally:
            self._scheduled = False
            if self._queues or self._outputs:
                self._schedule()


def _guarded(step: Callable[[], None]) -> None:
    """One queue or connection that fails is our bug, but must not stop all the others."""
    try:
        step()
    except Exception:
        log.exception("unexpected error at the end of a turn")
