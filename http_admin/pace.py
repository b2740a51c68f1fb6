"""Requests that come together begin one after the other, each in a turn of the loop of its own.

A request takes the loop for a millisecond, and a page of the web UI makes several at once: in
between it is the turn of timers and of AMQP clients (docs/decisions/0009). The longer the line, the
more of them begin in a turn: nobody waits long behind a flood of requests.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

CROWD = 20
"""Of so many who wait, one more begins in each turn."""


class OneByOne:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False
        """One has begun in this turn."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_taken:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._take()
        await self._app(scope, receive, send)

    def _take(self) -> None:
        self._is_taken = True
        asyncio.get_running_loop().call_soon(self._give)

    def _give(self) -> None:
        """To the first of those who still wait."""
        self._is_taken = False
        begun, most = 0, 1 + len(self._waiting) // CROWD
        while self._waiting and begun < most:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                begun += 1
        if begun:
            self._take()
