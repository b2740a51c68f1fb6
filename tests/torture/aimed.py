"""A broker that kills itself at a chosen point of its writer, the Nth time it gets there.

Kills from outside come at random moments and hit the short ones hardly ever.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

POINTS = ("before a commit", "after a commit", "in a checkpoint")


def at(number: int, chance: random.Random) -> tuple[str, str]:
    """What python is to run instead of `-m leveret`: the points in turn."""
    point = POINTS[number % len(POINTS)]
    nth = 1 if point == "in a checkpoint" else chance.randint(4, 20)
    return "-c", f"from tests.torture.aimed import main; main({point!r}, {nth})"


def main(point: str, nth: int) -> None:
    from leveret.cli import main as leveret
    from queues.storage.transaction import Transactor
    from queues.storage.writer import Writer

    owner: Any = Transactor
    if point == "before a commit":  # all statements are through, and nothing is committed
        owner._drop_content = _deadly(owner._drop_content, nth, die)
    elif point == "after a commit":  # committed, and nobody knows
        owner._count = _deadly(owner._count, nth, die)
    else:
        owner = Writer
        owner._checkpoint = _deadly(owner._checkpoint, nth, die_soon)
    leveret()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_soon() -> None:
    """From another thread, while this one goes on."""

    def wait_a_moment() -> None:
        time.sleep(0.0005)
        die()

    threading.Thread(target=wait_a_moment).start()


def _deadly(real: Callable[..., Any], nth: int, end: Callable[[], None]) -> Callable[..., Any]:
    calls = itertools.count(1)

    def deadly(*arguments: Any) -> Any:
        if next(calls) == nth:
            end()
        return real(*arguments)

    return deadly
