"""What the program that runs the HTTP server tells the application.

The composition root passes it in, because the AMQP server and the HTTP server do not know each
other.
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
    """Reads stored history for Spark and for other programs that want all of it."""

    def ranges(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> dict[str, Any]:
        """The ranges of ids; raises ValueError with a sentence for the client."""

    def export(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> Iterator[bytes]:
        """Rows as an Arrow IPC stream; raises ValueError with a sentence for the client."""


def _do_nothing() -> None:
    """The default: requests to stop are ignored, and there is no certificate."""


@dataclass(slots=True)
class AppContext:
    request_stop: Callable[[], None] = _do_nothing
    listeners: tuple[Listener, ...] = ()
    history: HistorySource | None = None
    streams: Counter[str] = field(default_factory=Counter)
    """Open live streams, by user."""
    certificate_expires: Callable[[], float | None] = _do_nothing
    """Unix time in seconds; None without TLS."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server is about to stop: endless responses end."""


async def _context(request: Request) -> AppContext:
    context: AppContext = request.app.state.context
    return context


Context = Annotated[AppContext, Depends(_context)]
