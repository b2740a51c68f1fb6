"""A broker that kills itself at a chosen point of its writer, the Nth time it gets there.

Kills from outside come at random times and rarely hit the short steps of a commit.
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


def program_for(number: int, rng: random.Random) -> tuple[str, str]:
    """Arguments for python in place of `-m leveret`; the points take turns."""
    point = POINTS[number % len(POINTS)]
    nth = 1 if point == "in a checkpoint" else rng.randint(4, 20)
    return "-c", f"from tests.torture.kill_points import main; main({point!r}, {nth})"


def main(point: str, nth: int) -> None:
    from leveret.cli import main as leveret
    from leveret.queues.storage.transaction import Transactor
    from leveret.queues.storage.writer import Writer

    owner: Any = Transactor
    if point == "before a commit":  # all statements were run, nothing is committed
        owner._insert_events = _killing_after(owner._insert_events, nth, kill_self)
    elif point == "after a commit":  # committed, but no client was told
        owner._count_journals = _killing_before(owner._count_journals, nth, kill_self)
    else:
        owner = Writer
        owner._checkpoint = _killing_before(owner._checkpoint, nth, kill_self_soon)
    leveret()


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_self_soon() -> None:
    """Kill the process from another thread while this one continues."""

    def wait_and_kill() -> None:
        time.sleep(0.0005)
        kill_self()

    threading.Thread(target=wait_and_kill).start()


def _killing_before(
    function: Callable[..., Any], nth: int, kill: Callable[[], None]
) -> Callable[..., Any]:
    calls = itertools.count(1)

    def call(*arguments: Any) -> Any:
        if next(calls) == nth:
            kill()
        return function(*arguments)

    return call


def _killing_after(
    function: Callable[..., Any], nth: int, kill: Callable[[], None]
) -> Callable[..., Any]:
    calls = itertools.count(1)

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        if next(calls) == nth:
            kill()
        return result

    return call
