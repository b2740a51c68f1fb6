"""Request bodies: how large one may be, and checks that come before it is parsed.

A body is read after its sender is authenticated. Unauthenticated clients may send as much as a
login takes; large bodies are for users who may import definitions or publish. The values in a body
are counted before it is parsed, since parsing occupies the loop until it is done.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive

from leveret.broker import Action, Broker, User
from leveret.http_admin.errors import ApiError
from leveret.http_admin.middleware.raw_path import exchange_name

MAX_UNAUTHENTICATED_BODY = 16 * 1024
"""A name and a password of the greatest length, with every character escaped."""
MAX_VALUES = 32_768
"""Parsed within some milliseconds; eight times what an AMQP table may hold."""
_QUOTES_PER_VALUE = 4
"""At most: two around a key and two around its value."""
_PUBLISH = re.compile("/api/(exchanges|logs)/([^/]+)/([^/]+)/publish")
_MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|\x00")
"""A lone surrogate, escaped or as bytes; NUL is a sign of UTF-16, which the parser would accept."""


def max_body_size(path: str, broker: Broker, user: User | None) -> int:
    """Definitions may be long, and so may messages, the more so in base64."""
    settings = broker.settings
    if user is None:
        return min(MAX_UNAUTHENTICATED_BODY, settings.http_max_body)
    if _is_import(path):
        is_large = "administrator" in user.tags
    else:
        is_large = _may_publish(path, broker, user)
    return settings.http_max_import if is_large else settings.http_max_body


def max_values(path: str) -> int | None:
    """How many values a body may hold; definitions may hold any number."""
    return None if _is_import(path) else MAX_VALUES


def _is_import(path: str) -> bool:
    return path.startswith("/api/definitions")


def _may_publish(path: str, broker: Broker, user: User) -> bool:
    """Whether the user may write to the exchange or log named by the path."""
    match = _PUBLISH.fullmatch(path)
    if match is None:
        return False
    kind, vhost, name = match[1], unquote(match[2]), unquote(match[3])
    is_authorized = broker.users.is_authorized
    if kind == "logs":
        return is_authorized(user.name, vhost, Action.LOG_APPEND, log=name)
    return is_authorized(user.name, vhost, Action.PUBLISH, exchange=exchange_name(name))


def announced_size(headers: Headers, limit: int) -> int:
    """The size of the body that follows: as announced, else the limit."""
    length = headers.get("content-length", "")
    if length.isascii() and length.isdecimal():
        if int(length) > limit:
            raise _too_large(limit)
        return int(length)
    return limit if "transfer-encoding" in headers else 0


async def read_body(limit: int, receive: Receive, max_values: int | None = None) -> bytes:
    parts, size, has_more = [], 0, True
    while has_more:
        message = await receive()
        if message["type"] != "http.request":
            raise ApiError(400, "the connection was closed before the whole body arrived")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        has_more = message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
    body = b"".join(parts)
    if max_values is not None:  # definitions are checked when they are parsed
        if has_more_values(body, max_values):
            raise ApiError(400, f"the body has more than {max_values} values")
        _reject_lone_surrogates(body)
    return body


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes")


def has_more_values(body: bytes, limit: int) -> bool:
    """Whether JSON has more than `limit` values, without parsing it.

    Every value but the first follows a comma or a bracket (an empty object or array counts twice).
    Separators inside strings are told apart only if all separators together exceed the limit;
    strings are then cut out, which are delimited by quotes that are not escaped.
    """
    if len(body) <= 2 * limit or _count_separators(body) <= limit:
        return False
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if unescaped.count(b'"') > _QUOTES_PER_VALUE * (limit + 1):
        return True
    return _count_separators(b"".join(unescaped.split(b'"')[::2])) > limit


def _count_separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _reject_lone_surrogates(body: bytes) -> None:
    """`\\ud800` alone is no text: storing it would fail. Multipart forms are not checked."""
    is_suspect = b"\\u" in body or b"\xed" in body or b"\x00" in body  # faster than the pattern
    if is_suspect and _MAYBE_SURROGATE.search(body) and not body.startswith(b"--"):
        try:
            orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ApiError(400, f"bad JSON: {error}") from None
