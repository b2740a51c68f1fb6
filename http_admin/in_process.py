"""Requests to the application from within, without a socket: same routes, same permissions.

The inner request carries the credentials of the outer one, so its response is exactly what the
user would get for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

from leveret.http_admin.middleware.raw_path import routed_path

_FORWARDED_HEADERS = (b"authorization", b"cookie", b"host")
_NOT_ESCAPED = "%/:@!$&'()*+,;=~"
MAX_BODY = 8 * 1024 * 1024
"""Bytes of a response; the body of a longer one is dropped."""


@dataclass(slots=True)
class InProcessResponse:
    status: int = 500
    body: bytearray = field(default_factory=bytearray)
    is_json: bool = False
    is_too_long: bool = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            content_type = dict(message["headers"]).get(b"content-type", b"")
            self.is_json = content_type.startswith(b"application/json")
        elif message["type"] == "http.response.body":
            part = message.get("body", b"")
            self.is_too_long = self.is_too_long or len(self.body) + len(part) > MAX_BODY
            if self.is_too_long:
                self.body.clear()
            else:
                self.body += part


async def get_in_process(app: ASGIApp, outer: Request, path: str) -> InProcessResponse:
    """GET a path (with its query) as the user of the outer request."""
    response = InProcessResponse()
    await app(_scope(outer, path), _EmptyBody(), response.send)
    return response


def routed_path_of(path: str) -> str:
    """The path by which the route of an inner request is chosen, however it is escaped."""
    return routed_path(_address(path))


def _address(path: str) -> Scope:
    """As a client would send it: characters that a request line cannot contain are escaped."""
    parts = urlsplit(path)
    return {
        "path": parts.path,
        "raw_path": quote(parts.path, _NOT_ESCAPED).encode(),
        "query_string": quote(parts.query, _NOT_ESCAPED + "?").encode(),
    }


def _scope(outer: Request, path: str) -> Scope:
    headers = outer.scope["headers"]
    return {
        "type": "http",
        "asgi": outer.scope["asgi"],
        "http_version": "1.1",
        "method": "GET",
        "scheme": outer.scope["scheme"],
        **_address(path),
        "root_path": "",
        "headers": [(name, value) for name, value in headers if name in _FORWARDED_HEADERS],
        "client": outer.scope.get("client"),
        "server": outer.scope.get("server"),
        "state": {},
    }


class _EmptyBody:
    """Receives an empty body, then nothing until the outer request ends.

    It must not return a second time: streaming responses wait for a disconnect in a loop.
    """

    def __init__(self) -> None:
        self._is_received = False

    async def __call__(self) -> Message:
        if self._is_received:
            await asyncio.get_running_loop().create_future()
        self._is_received = True
        return {"type": "http.request", "body": b"", "more_body": False}
