"""Bodies of requests: how large one may be for whoever asks, and how much is held at a time.

A body is read after its sender is known. A stranger may send what a login takes and no more; long
bodies are for those who may use them. What a body will hold at most is set aside before the first
octet is taken, and kept until the answer has been given, since what a body is parsed into is many
times its size; whoever comes when too much is set aside waits its turn. Short bodies do not wait:
the limit on connections bounds them. Runs on the loop; a crash leaves nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive

from http_admin.errors import ApiError
from leveret.broker import Broker, User

STRANGERS_BODY = 16 * 1024
"""A name and a password of the longest kind, every character escaped."""
SHORT = 64 * 1024
_DOUBTFUL = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|\x00")
"""Signs of half a character, escaped or not; the last of UTF-16, which the parser would take."""


class Bodies:
    """Octets set aside for bodies, at most `most`; who asks first gets first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"<Bodies {self.held} of {self.most} waiting={len(self._waiting)}>"

    @asynccontextmanager
    async def room(self, octets: int) -> AsyncIterator[None]:
        """Room for this much, when there is."""
        if octets <= SHORT:
            yield
            return
        octets = min(octets, self.most)
        await self._take(octets)
        try:
            yield
        finally:
            self.held -= octets
            self._let_in()

    async def _take(self, octets: int) -> None:
        if not self._waiting and self.held + octets <= self.most:
            self.held += octets
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((octets, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.held -= octets
                self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting:
            octets, turn = self._waiting[0]
            if not turn.done():
                if self.held + octets > self.most:
                    return
                self.held += octets
                turn.set_result(None)
            self._waiting.popleft()


def limit_for(path: str, broker: Broker, user: User | None) -> int:
    """Definitions are long, and so are messages, more so in base64."""
    settings = broker.settings
    if user is None:
        return min(STRANGERS_BODY, settings.http_max_body)
    if path.startswith("/api/definitions"):
        may = "administrator" in user.tags
    else:
        may = path.endswith("/publish") and _may_write(broker, user)
    return settings.http_max_import if may else settings.http_max_body


def _may_write(broker: Broker, user: User) -> bool:
    permissions = broker.users.permissions
    return any(one.write for (name, _), one in permissions.items() if name == user.name)


def announced(headers: Headers, limit: int) -> int:
    """How much of a body is coming: what is said, else as much as there may be."""
    said = headers.get("content-length", "")
    if said.isascii() and said.isdecimal():
        if int(said) > limit:
            raise _too_large(limit)
        return int(said)
    return limit if "transfer-encoding" in headers else 0


async def read_body(limit: int, receive: Receive) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ApiError(400, "the request ended early")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
    body = b"".join(parts)
    _refuse_half_characters(body)
    return body


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} octets")


def _refuse_half_characters(body: bytes) -> None:
    """`\\ud800` alone is no text: a store that is to write it fails. A form is none of ours."""
    if _DOUBTFUL.search(body) and not body.startswith(b"--"):
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ApiError(400, f"bad JSON: {error}") from None
