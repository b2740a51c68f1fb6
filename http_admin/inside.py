"""Asking the application itself, without a socket: the same routes, the same rights.

The inner request carries the outer one's credentials, so a view is exactly what the user would
have got by asking for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

_CARRIED = (b"authorization", b"cookie", b"host")


@dataclass(slots=True)
class InnerAnswer:
    status: int = 500
    body: bytearray = field(default_factory=bytearray)
    is_json: bool = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kind = dict(message["headers"]).get(b"content-type", b"")
            self.is_json = kind.startswith(b"application/json")
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")


async def ask_inside(app: ASGIApp, outer: Request, path: str) -> InnerAnswer:
    """GET a path (with its query) as the user of the outer request."""
    answer = InnerAnswer()
    await app(_scope(outer, path), _nothing_more, answer.send)
    return answer


def _scope(outer: Request, path: str) -> Scope:
    parts = urlsplit(path)
    return {
        "type": "http",
        "asgi": outer.scope["asgi"],
        "http_version": "1.1",
        "method": "GET",
        "scheme": outer.scope["scheme"],
        "path": parts.path,
        "raw_path": parts.path.encode("ascii", "replace"),
        "query_string": parts.query.encode("ascii", "replace"),
        "root_path": "",
        "headers": [(k, v) for k, v in outer.scope["headers"] if k in _CARRIED],
        "client": outer.scope.get("client"),
        "server": outer.scope.get("server"),
        "state": {},
    }


async def _nothing_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
