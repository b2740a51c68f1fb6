"""The user on whose behalf the event loop currently runs, for the events that name an actor.

Between two steps of the loop it is always the broker itself, so that what a timer does later is not
attributed to the user who set it. Event-loop thread only; nothing here outlives the process.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

INTERNAL_USER = "rmq-internal"
"""RabbitMQ's name for itself where no user asked for an action."""


class CurrentActor:
    __slots__ = ("name",)

    def __init__(self) -> None:
        self.name = INTERNAL_USER

    def __repr__(self) -> str:
        return f"<CurrentActor {self.name}>"

    @contextmanager
    def acting_as(self, name: str) -> Iterator[None]:
        """Attribute the block to this user; it must not await."""
        previous, self.name = self.name, name
        try:
            yield
        finally:
            self.name = previous

    @types.coroutine
    def run_as(self, name: str, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Await `work`, attributed to this user while it runs, but not while others do."""
        step, value = work.send, None
        while True:
            with self.acting_as(name):
                try:
                    awaited = step(value)
                except StopIteration as end:
                    return end.value
            try:
                step, value = work.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - thrown into the coroutine
                step, value = work.throw, error
