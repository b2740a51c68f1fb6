"""What the program that runs the HTTP server tells the application.

The composition root passes it in, because the AMQP server and the HTTP server do not know each
other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request


@dataclass(frozen=True, slots=True)
class Listener:
    protocol: str
    host: str
    port: int


class HistoryRows(Protocol):
    """An Arrow IPC stream; closing it before its end stops reading."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def close(self) -> None: ...


class HistorySource(Protocol):
    """Reads stored history for Spark and for other programs that want all of it.

    Both methods raise ValueError with a sentence for the client, and ImportError if a module is not
    installed.
    """

    async def ranges(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> dict[str, Any]:
        """The ranges of ids."""

    async def export(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> HistoryRows:
        """Rows, the first of which have been read: what fails later breaks the stream."""


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
