"""What the program that runs the HTTP front tells it: where it listens, how to stop, what to call.

Given by the composition root, because fronts do not know each other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request


@dataclass(frozen=True, slots=True)
class Listener:
    protocol: str
    host: str
    port: int


class HistorySource(Protocol):
    """Reads stored history for Spark and other programs that want all of it."""

    def ranges(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> dict[str, Any]:
        """What there is; raises ValueError with a sentence."""

    def export(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> Iterator[bytes]:
        """Rows as an Arrow IPC stream; raises ValueError with a sentence."""


def _nothing() -> None:
    """Nobody listens to a request to stop; there is no certificate."""


@dataclass(slots=True)
class Surroundings:
    request_stop: Callable[[], None] = _nothing
    listeners: tuple[Listener, ...] = ()
    history: HistorySource | None = None
    streams: Counter[str] = field(default_factory=Counter)
    """Live streams open, by user."""
    certificate_expires: Callable[[], float | None] = _nothing
    """Seconds since 1970; None without TLS."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is about to end, so that endless answers do."""


async def _surroundings(request: Request) -> Surroundings:
    found: Surroundings = request.app.state.surroundings
    return found


Around = Annotated[Surroundings, Depends(_surroundings)]
