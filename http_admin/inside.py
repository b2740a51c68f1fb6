"""Asking the application itself, without a socket: the same routes, the same rights.

The inner request carries the outer one's credentials, so a view is exactly what the user would
have got by asking for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

from http_admin.paths import routed_path

_CARRIED = (b"authorization", b"cookie", b"host")
_KEPT = "%/:@!$&'()*+,;=~"
LARGEST = 8 * 1024 * 1024
"""Octets of an answer; of a longer one nothing is kept."""


@dataclass(slots=True)
class InnerAnswer:
    status: int = 500
    body: bytearray = field(default_factory=bytearray)
    is_json: bool = False
    is_too_long: bool = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kind = dict(message["headers"]).get(b"content-type", b"")
            self.is_json = kind.startswith(b"application/json")
        elif message["type"] == "http.response.body":
            more = message.get("body", b"")
            self.is_too_long = self.is_too_long or len(self.body) + len(more) > LARGEST
            if self.is_too_long:
                self.body.clear()
            else:
                self.body += more


async def ask_inside(app: ASGIApp, outer: Request, path: str) -> InnerAnswer:
    """GET a path (with its query) as the user of the outer request."""
    answer = InnerAnswer()
    await app(_scope(outer, path), _Receive(), answer.send)
    return answer


def meant_path(path: str) -> str:
    """Which endpoint an inner path leads to, however it is written."""
    return routed_path(_address(path))


def _address(path: str) -> Scope:
    """What a client would have sent: characters that no request line holds are escaped."""
    parts = urlsplit(path)
    return {
        "path": parts.path,
        "raw_path": quote(parts.path, _KEPT).encode(),
        "query_string": quote(parts.query, _KEPT + "?").encode(),
    }


def _scope(outer: Request, path: str) -> Scope:
    return {
        "type": "http",
        "asgi": outer.scope["asgi"],
        "http_version": "1.1",
        "method": "GET",
        "scheme": outer.scope["scheme"],
        **_address(path),
        "root_path": "",
        "headers": [(k, v) for k, v in outer.scope["headers"] if k in _CARRIED],
        "client": outer.scope.get("client"),
        "server": outer.scope.get("server"),
        "state": {},
    }


class _Receive:
    """An empty body, and then nothing: who asks is there until the outer request ends.

    It must not answer at once again: an endless answer listens for a disconnect in a loop.
    """

    def __init__(self) -> None:
        self._has_said = False

    async def __call__(self) -> Message:
        if self._has_said:
            await asyncio.get_running_loop().create_future()
        self._has_said = True
        return {"type": "http.request", "body": b"", "more_body": False}
