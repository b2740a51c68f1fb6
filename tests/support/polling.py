"""Polling in tests: wait until a condition holds, or fail after a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 60.0
INTERVAL_SECONDS = 0.01


def wait_until(condition: Callable[[], T], seconds: float = DEADLINE_SECONDS) -> T:
    """Return the first true result of the condition."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"no effect within {seconds:g} s"
        time.sleep(INTERVAL_SECONDS)
    return result


async def wait_until_async(condition: Callable[[], T], seconds: float = DEADLINE_SECONDS) -> T:
    """Like `wait_until`, while the event loop keeps running."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"no effect within {seconds:g} s"
        await asyncio.sleep(INTERVAL_SECONDS)
    return result


async def wait_until_reached(
    count: Callable[[], int], target: int, seconds: float = DEADLINE_SECONDS
) -> None:
    """Wait until the count is at least the target."""
    await wait_until_async(lambda: count() >= target, seconds)
