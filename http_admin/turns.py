"""Long answers take turns: of one user, few are being made or read at a time.

An answer is many times its size while it is made, and stays in memory until its client has read it,
which may take its time. A place is taken before anything is made, and given back by `Guard` when
the answer has left; who finds none waits, and who finds too many waiting is refused. Each user has
places of its own, so that nobody waits for another's clients. Runs on the loop; a crash leaves
nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import Depends, Request
from starlette.types import Scope

from http_admin.auth import CurrentUser, require_unchanged
from http_admin.errors import ApiError

AT_A_TIME = 4
MOST_WAITING = 100
_PLACE = "place_in_turn"


@dataclass(slots=True)
class _Line:
    """One user's: how many places are taken, and who waits for one."""

    taken: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Turns:
    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def __repr__(self) -> str:
        return f"<Turns of {len(self._lines)} users>"

    async def take(self, user: str) -> None:
        """A place, when one is free."""
        line = self._lines.setdefault(user, _Line())
        if line.taken < AT_A_TIME:
            line.taken += 1
            return
        if len(line.waiting) >= MOST_WAITING:
            raise ApiError(429, "too many requests at a time: read the answers of earlier ones")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(user)
            raise

    def give(self, user: str) -> None:
        """A place is free again: the next one takes it over."""
        line = self._lines[user]
        while line.waiting:
            turn = line.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        line.taken -= 1
        if not line.taken:
            del self._lines[user]


async def in_turn(request: Request, user: CurrentUser) -> None:
    """Wait for this request's turn; asked again, it has it already."""
    if getattr(request.state, _PLACE, None) is None:
        turns: Turns = request.app.state.turns
        await turns.take(user.name)
        setattr(request.state, _PLACE, partial(turns.give, user.name))
        await require_unchanged(request, user)


def leave(scope: Scope) -> None:
    """The answer to this request has left, or there is none."""
    give = scope.get("state", {}).pop(_PLACE, None)
    if give is not None:
        give()


InTurn: Any = Depends(in_turn)
