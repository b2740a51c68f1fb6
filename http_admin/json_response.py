"""JSON from whatever the broker holds: clients' tables carry bytes, times and big numbers.

Most routes return rows that pydantic validates and serializes. The few with large responses
return a `FastJsonResponse` instead: orjson over plain dicts. To validate and encode the rows of
5,000 queues, pydantic takes 51 ms, and orjson 5 ms to encode them; both occupy the event loop. That
these responses are what their `response_model` says is checked by all tests of the API.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from leveret.broker.runtime.slices import Steps

LARGE_DOCUMENT = 1 << 18
ROWS_PER_PART = 200
_LONG_NUMBER = 18


class FastJsonResponse(Response):
    """JSON that is encoded already (`dump_json`, `rows_response`) and not validated by a model."""

    media_type = "application/json"


class PartsResponse(FastJsonResponse):
    """A large response in parts, which are sent one by one: joining them would take long."""

    def __init__(
        self,
        parts: Sequence[bytes],
        headers: Mapping[str, str] | None = None,
        media_type: str = FastJsonResponse.media_type,
    ) -> None:
        super().__init__(b"", headers=headers, media_type=media_type)
        self.headers["content-length"] = str(sum(map(len, parts)))
        self.parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def dump_json(content: Any) -> bytes:
    try:
        return orjson.dumps(content, default=_json_value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Integers beyond 64 bits and lone surrogates are rare, but must not fail a listing.
        return json.dumps(json_safe(content), allow_nan=False).encode()


def encode_document(document: Mapping[str, Any]) -> Steps[list[bytes]]:
    """An object with long lists as JSON, in parts."""
    parts, start = list[bytes](), b"{"
    for name, value in document.items():
        start += dump_json(name) + b":"
        if isinstance(value, list) and len(value) > ROWS_PER_PART:
            start += b"["
            for at in range(0, len(value), ROWS_PER_PART):
                parts.append(start + dump_json(value[at : at + ROWS_PER_PART])[1:-1])
                start = b","
                yield
            parts.append(b"]")
        else:
            parts.append(start + dump_json(value))
        start = b","
    return [*parts, b"}"] if parts else [b"{}"]


async def load_json(raw: bytes) -> Any:
    """What orjson reads; a large document without occupying the loop. Raises JSONDecodeError."""
    if len(raw) < LARGE_DOCUMENT:
        return orjson.loads(raw)
    try:
        return await asyncio.to_thread(_load_on_thread, raw)
    except (ValueError, RecursionError):
        return orjson.loads(raw)


def _load_on_thread(raw: bytes) -> Any:
    """orjson would hold the interpreter lock until it has read all; the hook lets others run."""
    if b"\\ud" in raw or b"\\uD" in raw:  # may be half of a pair, which json accepts
        return orjson.loads(raw)
    return json.loads(
        raw.decode(), object_hook=_same, parse_int=_integer, parse_constant=_refuse_constant
    )


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _integer(digits: str) -> int | float:
    """Like orjson: a float beyond 64 bits."""
    if len(digits) < _LONG_NUMBER:
        return int(digits)
    is_in_range = len(digits) < 2 * _LONG_NUMBER and -(1 << 63) <= int(digits) < 1 << 64
    return int(digits) if is_in_range else float(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def json_safe(value: Any) -> Any:
    """The value with everything that JSON lacks replaced, as orjson would write it."""
    if isinstance(value, dict):
        return {key: json_safe(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return json_safe(_json_value(value))


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, datetime.datetime):  # only for `json_safe`: orjson writes the same
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    return str(value)
