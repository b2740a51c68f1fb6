"""Path segments that may contain an encoded slash: vhost `/` is `%2F` in a URL.

Servers decode the path before routing, which would turn `%2F` into a separator. Routing therefore
uses the raw path (see `SecurityMiddleware`), and each `{name:seg}` of a route is decoded alone.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Scope

DEFAULT_EXCHANGE = "amq.default"
_SLASHES = re.compile("//+")


class _Segment(Convertor[str]):
    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("seg", _Segment())


def exchange_name(segment: str) -> str:
    """The default exchange has no name in AMQP, so URLs call it amq.default."""
    return "" if segment == DEFAULT_EXCHANGE else segment


def normalized(path: str) -> str:
    """Under /api, tools end paths with a slash or double one: drop these."""
    if not path.startswith("/api/"):
        return path
    return _SLASHES.sub("/", path).rstrip("/")


def routed_path(scope: Scope) -> str:
    """The path by which a route is chosen."""
    raw = scope.get("raw_path")
    if not raw:
        decoded: str = scope["path"]
        return decoded
    path: str = raw.decode("latin-1").partition("?")[0]
    return normalized(path) if "//" in path or path.endswith("/") else path
