"""Long work on the event loop, in slices: the work of other clients runs in between.

Long work is written as a generator that yields after each short step. Between two yields nothing
else runs, so a step needs no lock and its changes are in one batch of the store; but whatever the
work looked up before a yield may have changed after it. Event-loop thread only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TypeVar

SLICE_SECONDS = 0.002
"""CPU time: waiting for the interpreter lock or for a core must not make slices smaller."""
PAUSE_SECONDS = 0.001
"""In the pause the writer gets the interpreter lock without waiting for it."""

MAX_WAITING_CHANGES = 200
"""A batch of so many changed definitions takes the writer a few milliseconds."""

T = TypeVar("T")
Steps = Generator[None, None, T]


async def run_in_slices(steps: Steps[T], waiting_changes: Callable[[], int] = lambda: 0) -> T:
    """Run all steps and return the generator's result.

    `waiting_changes`: how many changed definitions wait for the writer. The next slice begins when
    there are few, because the confirms of other clients wait for their batch, too.
    """
    while True:
        if waiting_changes() <= MAX_WAITING_CHANGES:
            try:
                _run_slice(steps)
            except StopIteration as done:
                result: T = done.value
                return result
        await asyncio.sleep(PAUSE_SECONDS)


def _run_slice(steps: Steps[T]) -> None:
    """Run at least one step; raises StopIteration after the last one."""
    until = time.thread_time() + SLICE_SECONDS
    next(steps)
    while time.thread_time() <= until:
        next(steps)


def run_at_once(steps: Steps[T]) -> T:
    """Run all steps without a pause: for little work, and before clients are served."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
