"""Poll with a deadline: what is awaited happens in another process."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable


async def until(true: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_reaches(count: Callable[[], int], target: int, seconds: float = 60) -> None:
    await until(lambda: count() >= target, seconds)


USUAL_IMPORT_SECONDS = 0.5


async def slowness() -> float:
    """How many times slower than a quiet machine this one starts a program right now.

    Limits in seconds are for a quiet machine; a busy one is given so many times as long.
    """
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import leveret.launch")
    await process.wait()
    return max(1.0, (time.monotonic() - began) / USUAL_IMPORT_SECONDS)
