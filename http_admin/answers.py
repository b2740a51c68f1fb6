"""JSON out, whatever the broker holds: clients' tables carry bytes, times and big numbers."""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import Any

import orjson
from starlette.responses import JSONResponse


class Written:
    """A part of an answer that is JSON already. No dataclass: orjson would look into it."""

    __slots__ = ("octets",)

    def __init__(self, octets: bytes) -> None:
        self.octets = octets

    def __repr__(self) -> str:
        return f"<Written {len(self.octets)} octets>"


class JsonAnswer(JSONResponse):
    """An answer written by orjson, or by the standard library where orjson refuses."""

    def render(self, content: Any) -> bytes:
        return dump_json(content)


def dump_json(content: Any) -> bytes:
    if isinstance(content, Written):
        return content.octets
    try:
        return orjson.dumps(content, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Integers beyond 64 bits and lone surrogates: rare, but no reason to fail a listing.
        return json.dumps(_sayable(content), allow_nan=False).encode()


def _sayable(value: Any) -> Any:
    """As orjson would have written it: null where a float is no number."""
    if isinstance(value, dict):
        return {key: _sayable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Written):
        return json.loads(value.octets)
    return _sayable(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Written):
        return orjson.Fragment(value.octets)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, datetime.datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal):
        return float(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True)
    return str(value)
