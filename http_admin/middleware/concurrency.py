"""How many requests start, wait and respond at a time.

`WeightedSemaphore` is the one queue of waiters; three limits use it:

- `RequestPacing` starts requests one after the other, each in a loop iteration of its own. A
  request occupies the loop for about a millisecond, and a page of the web UI sends several at once;
  timers and AMQP clients run in between (docs/decisions/0009).
- `BodyBudget` bounds the bytes reserved for request bodies. A body is reserved before its first
  byte is read and until its response is sent, since parsing makes it many times as large.
- `take_response_slot` bounds the large responses of each user. A response is many times its size
  while it is built, and stays in memory until the client has read it. Each user has slots of its
  own, so that no user waits for another one's clients.

Runs on the loop's thread. All of it is lost in a crash, and nothing needs it afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from fastapi import Depends, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from leveret.broker import User
from leveret.http_admin.auth import CurrentUser, require_unchanged
from leveret.http_admin.errors import ApiError

WAITING_PER_EXTRA_START = 20
"""For each so many waiting requests, one more starts in every loop iteration."""
SMALL_BODY = 64 * 1024
"""Bodies up to this size need no reservation: the limit on connections bounds them."""
SLOTS_PER_USER = 4
MAX_WAITING_PER_USER = 100
RELEASE_SLOT = "release_response_slot"
"""Key of a request's state: a function that `SecurityMiddleware` calls after the response."""


class WeightedSemaphore:
    """Grants up to `capacity` in total, in the order of the requests (first in, first out)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.in_use = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} {self.in_use} of {self.capacity} waiting={self.waiting}>"

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def try_acquire(self, weight: int = 1) -> bool:
        """Take `weight` if it is free and there are no waiters."""
        if self._waiters or self.in_use + weight > self.capacity:
            return False
        self.in_use += weight
        return True

    async def acquire(self, weight: int = 1) -> None:
        if self.try_acquire(weight):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((weight, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(weight)  # cancelled after the grant, before it could run
            raise

    def release(self, weight: int = 1) -> None:
        """Give `weight` back, and grant what fits to the first waiters that are not cancelled."""
        self.in_use -= weight
        while self._waiters:
            wanted, granted = self._waiters[0]
            if not granted.done():
                if self.in_use + wanted > self.capacity:
                    return
                self.in_use += wanted
                granted.set_result(None)
            self._waiters.popleft()


class RequestPacing:
    """ASGI middleware that spreads requests over loop iterations, in the order they arrived."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._starts = WeightedSemaphore(1)
        self._is_scheduled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._starts.try_acquire():
            await self._starts.acquire()
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_iteration)
        await self._app(scope, receive, send)

    def _next_iteration(self) -> None:
        starts = self._starts
        starts.capacity = 1 + starts.waiting // WAITING_PER_EXTRA_START
        starts.release(starts.in_use)
        if starts.in_use:
            asyncio.get_running_loop().call_soon(self._next_iteration)
        else:
            self._is_scheduled = False


class BodyBudget(WeightedSemaphore):
    """Bytes reserved for request bodies."""

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Wait until `size` bytes fit; a body larger than the budget takes all of it."""
        if size <= SMALL_BODY:
            yield
            return
        weight = min(size, self.capacity)
        await self.acquire(weight)
        try:
            yield
        finally:
            self.release(weight)


SlotsByUser = WeakValueDictionary[str, WeightedSemaphore]
"""Slots of the users whose requests have one or wait for one; those requests keep it alive."""


async def take_response_slot(request: Request, user: CurrentUser) -> None:
    """Wait for a slot, unless the request has one already."""
    if getattr(request.state, RELEASE_SLOT, None) is not None:
        return
    by_user: SlotsByUser = request.app.state.response_slots
    slots = by_user.get(user.name)
    if slots is None:
        slots = by_user[user.name] = WeightedSemaphore(SLOTS_PER_USER)
    has_waited = not slots.try_acquire()
    if has_waited:
        if slots.waiting >= MAX_WAITING_PER_USER:
            raise ApiError(
                429, "too many requests at a time: read the responses of earlier requests first"
            )
        await slots.acquire()
    setattr(request.state, RELEASE_SLOT, slots.release)
    if has_waited:
        require_unchanged(request, user)


async def take_response_slot_after_wait(request: Request, user: User) -> None:
    """For a request that has waited for messages, whose user may have been revoked meanwhile."""
    await take_response_slot(request, user)
    require_unchanged(request, user)


ResponseSlot: Any = Depends(take_response_slot)
