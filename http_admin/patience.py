"""uvicorn's protocol, with an end to its patience.

A request must have arrived whole within `seconds` of the connection or of its first octet: headers
that trickle in, and bodies that never end, cost a socket for that long and no longer. Beyond `most`
connections the newest is cut off. What happens after a request has arrived is not timed here.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class PatientProtocol(HttpToolsProtocol):
    seconds = 30.0
    most = 1_000

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        if len(self.connections) > self.most:
            self.transport.abort()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_longer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._wait()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._wait_no_longer()
        super().on_message_complete()

    def _wait(self) -> None:
        if self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self.seconds, self.transport.abort)

    def _wait_no_longer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def patient(seconds: float, most: int) -> type[PatientProtocol]:
    """The protocol with these limits, as uvicorn wants it: a class."""
    return type("PatientProtocol", (PatientProtocol,), {"seconds": seconds, "most": most})
