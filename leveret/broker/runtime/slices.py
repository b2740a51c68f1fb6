"""Long work on the event loop, in slices: the work of other clients runs in between.

Long work is written as a generator that yields after each short step. Between two yields nothing
else runs, so a step needs no lock and its changes are in one batch of the store; but whatever the
work looked up before a yield may have changed after it. Event-loop thread only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

SLICE_SECONDS = 0.002
"""CPU time: waiting for the interpreter lock or for a core must not make slices smaller."""
PAUSE_SECONDS = 0.001
"""In the pause the writer gets the interpreter lock without waiting for it."""

T = TypeVar("T")
Steps = Generator[None, None, T]


async def run_in_slices(steps: Steps[T]) -> T:
    """Run all steps and return the generator's result."""
    until = time.thread_time() + SLICE_SECONDS
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        if time.thread_time() > until:
            await asyncio.sleep(PAUSE_SECONDS)
            until = time.thread_time() + SLICE_SECONDS


def run_at_once(steps: Steps[T]) -> T:
    """Run all steps without a pause: for little work, and before clients are served."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
