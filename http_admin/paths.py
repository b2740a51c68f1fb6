"""Path segments that may contain an encoded slash: vhost `/` is `%2F` in a URL.

Servers decode the path before they route, which would turn `%2F` into a separator. So routing is
done on the path as it came, and each `{name:seg}` is decoded on its own.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send


class _Segment(Convertor[str]):
    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value


DEFAULT_EXCHANGE = "amq.default"
_SLASHES = re.compile("//+")

register_url_convertor("seg", _Segment())


def tidy(path: str) -> str:
    """Under /api a slash too many means nothing: tools end paths with one, or write two."""
    if not path.startswith("/api/"):
        return path
    return _SLASHES.sub("/", path).rstrip("/")


def exchange_name(segment: str) -> str:
    """The default exchange has no name in AMQP, so URLs call it amq.default."""
    return "" if segment == DEFAULT_EXCHANGE else segment


def routed_path(scope: Scope) -> str:
    """The path that decides which endpoint answers."""
    raw = scope.get("raw_path")
    if not raw:
        path: str = scope["path"]
        return path
    return tidy(raw.decode("latin-1").partition("?")[0])


class RawPath:
    """Middleware: route on the path as the client wrote it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": routed_path(scope)}
        await self._app(scope, receive, send)
