"""Bodies of requests: how large one may be for whoever asks, and how much is held at a time.

A body is read after its sender is known. A stranger may send what a login takes and no more; long
bodies are for those who may use them. What a body will hold at most is set aside before the first
octet is taken, and kept until the answer has been given, since what a body is parsed into is many
times its size; whoever comes when too much is set aside waits its turn. Short bodies do not wait:
the limit on connections bounds them. Of how many values a body is, is counted before it is parsed,
which stops the loop for as long as it takes. Runs on the loop; a crash leaves nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive

from http_admin.errors import ApiError
from http_admin.paths import exchange_name
from leveret.broker import Action, Broker, User

STRANGERS_BODY = 16 * 1024
"""A name and a password of the longest kind, every character escaped."""
SHORT = 64 * 1024
MOST_VALUES = 32_768
"""In one body: what is parsed in some milliseconds, and eight times what a table holds."""
_QUOTES = 4
"""Of one value at most: its key's, and its own."""
_PUBLISH = re.compile("/api/(exchanges|logs)/([^/]+)/([^/]+)/publish")
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
    may = "administrator" in user.tags if _is_import(path) else _may_publish(path, broker, user)
    return settings.http_max_import if may else settings.http_max_body


def values_for(path: str) -> int | None:
    """How many values a body may hold; a file of definitions any number."""
    return None if _is_import(path) else MOST_VALUES


def _is_import(path: str) -> bool:
    return path.startswith("/api/definitions")


def _may_publish(path: str, broker: Broker, user: User) -> bool:
    """To the very exchange or log that the path names."""
    found = _PUBLISH.fullmatch(path)
    if found is None:
        return False
    kind, vhost, name = found[1], unquote(found[2]), unquote(found[3])
    if kind == "logs":
        return broker.users.allows(user.name, vhost, Action.LOG_APPEND, log=name)
    return broker.users.allows(user.name, vhost, Action.PUBLISH, exchange=exchange_name(name))


def announced(headers: Headers, limit: int) -> int:
    """How much of a body is coming: what is said, else as much as there may be."""
    said = headers.get("content-length", "")
    if said.isascii() and said.isdecimal():
        if int(said) > limit:
            raise _too_large(limit)
        return int(said)
    return limit if "transfer-encoding" in headers else 0


async def read_body(limit: int, receive: Receive, most_values: int | None = None) -> bytes:
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
    if most_values is not None and has_more_values(body, most_values):
        raise ApiError(400, f"the body has more than {most_values} values")
    _refuse_half_characters(body)
    return body


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} octets")


def has_more_values(body: bytes, most: int) -> bool:
    """Whether JSON has more values, found without making any of them: making them stops the loop.

    Each but the first follows a comma or a bracket (an empty object or array counts twice). Those
    in texts are looked for only when all together would be too many; then texts are cut out, which
    lie between quotes that are not escaped.
    """
    if len(body) <= 2 * most or _marks(body) <= most:
        return False
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > _QUOTES * (most + 1):
        return True
    return _marks(b"".join(plain.split(b'"')[::2])) > most


def _marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _refuse_half_characters(body: bytes) -> None:
    """`\\ud800` alone is no text: a store that is to write it fails. A form is none of ours."""
    is_suspect = b"\\u" in body or b"\xed" in body or b"\x00" in body  # quicker than the pattern
    if is_suspect and _DOUBTFUL.search(body) and not body.startswith(b"--"):
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ApiError(400, f"bad JSON: {error}") from None
