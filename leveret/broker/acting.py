"""Who does what is being done at the moment, for the events that tell of it.

Between two steps of the loop it is always the broker itself, so what a timer does later is not put
down to whoever set it. Event-loop thread only; nothing here outlives a crash.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

INTERNAL_USER = "rmq-internal"
"""What RabbitMQ calls itself where nobody asked for what it does."""


class Acting:
    __slots__ = ("name",)

    def __init__(self) -> None:
        self.name = INTERNAL_USER

    def __repr__(self) -> str:
        return f"<Acting {self.name}>"

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Everything within, which must not await, is done by this user."""
        before, self.name = self.name, name
        try:
            yield
        finally:
            self.name = before

    @types.coroutine
    def throughout(self, name: str, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Await `work` under this name, which holds while it runs: others run in between."""
        step, given = work.send, None
        while True:
            with self.of(name):
                try:
                    wanted = step(given)
                except StopIteration as end:
                    return end.value
            try:
                step, given = work.send, (yield wanted)
            except BaseException as error:  # noqa: BLE001 - the work is told, and decides
                step, given = work.throw, error
