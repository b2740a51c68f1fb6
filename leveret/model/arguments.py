"""Declaration arguments: stored as JSON, compared and displayed as RabbitMQ does."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from leveret.model.errors import PreconditionFailed

_PLAIN = frozenset({str, int, bool})
_encode = json.JSONEncoder(separators=(",", ":")).encode


def dump_arguments(arguments: Mapping[str, Any]) -> str:
    if not arguments:
        return "{}"
    return _encode(_to_json(arguments))


def load_arguments(text: str) -> dict[str, Any]:
    if text == "{}":
        return {}
    loaded = json.loads(text, object_hook=_from_json)
    if not isinstance(loaded, dict):  # a table stored before keys were escaped
        loaded = json.loads(text)
    if not isinstance(loaded, dict):
        raise ValueError(f"arguments are a table, not {type(loaded).__name__}")
    return loaded


def _to_json(value: Any) -> Any:
    """A value of a type that JSON lacks becomes a table with one key, which names the type."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return _escaped({key: _to_json(inner) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    for tag, (kind, write, _) in _TAGGED.items():
        if isinstance(value, kind):
            return {tag: write(value)}
    return value


def _from_json(table: dict[str, Any]) -> Any:
    if len(table) != 1:
        return table
    [(key, content)] = table.items()
    if key.startswith(_ESCAPED):
        return {key.removeprefix(_TAG): content}
    if key not in _TAGGED:
        return table
    try:
        value = _TAGGED[key][2](content)
        is_ours = _to_json(value) == table
    except (ArithmeticError, OSError, TypeError, ValueError):
        is_ours, value = False, None
    # Versions before keys were escaped stored the tables of clients unchanged.
    return value if is_ours else table


def _escaped(table: dict[str, Any]) -> dict[str, Any]:
    """A client's own table with one key must not be read back as a tagged value."""
    if len(table) != 1:
        return table
    [(key, content)] = table.items()
    return {_TAG + key: content} if key.startswith(_TAG) else table


def _from_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


_TAG, _ESCAPED = "!", "!!"
_TAGGED: dict[str, tuple[type, Callable[[Any], str | float], Callable[[Any], Any]]] = {
    "!bytes": (bytes, _from_bytes, base64.b64decode),
    "!bytearray": (bytearray, _from_bytes, lambda text: bytearray(base64.b64decode(text))),
    "!decimal": (Decimal, str, Decimal),
    "!time": (datetime, datetime.timestamp, lambda seconds: datetime.fromtimestamp(seconds, UTC)),
}
"""The key, its type, the function that encodes a value, and the one that decodes it."""


def same_argument(left: Any, right: Any) -> bool:
    """As in RabbitMQ, integers of any width are equal, also as timestamps, and so are strings and
    bytes; no other types are, so 10 is neither 10.0 nor "10", and 1 is not true."""
    return _comparable(left) == _comparable(right)


def _comparable(value: Any) -> tuple[type, Any]:
    if isinstance(value, datetime):
        return int, int(value.timestamp())
    if isinstance(value, str):
        return bytes, value.encode()
    return (bytes if isinstance(value, bytearray) else type(value)), value


def require_same(
    what: str, name: str, received: Any, current: Any, types: Mapping[str, str] | None = None
) -> None:
    """Raise PreconditionFailed if a redeclaration differs."""
    if not same_argument(received, current):
        raise PreconditionFailed(
            f"inequivalent arg '{name}' for {what}: received {_shown(received)} "
            f"but current is {_shown(current)}"
        )


def require_same_arguments(
    what: str,
    compared: Iterable[str],
    received: tuple[Mapping[str, Any], Mapping[str, str]],
    current: tuple[Mapping[str, Any], Mapping[str, str]],
) -> None:
    """Compare only the arguments that have a meaning; others may differ."""
    for name in compared:
        new, old = received[0].get(name), current[0].get(name)
        if new is not None and old is not None:
            require_same(what, name, new, old)
        elif not same_argument(new, old):
            raise PreconditionFailed(
                f"inequivalent arg '{name}' for {what}: "
                f"received {_typed(new, received[1].get(name))} "
                f"but current is {_typed(old, current[1].get(name))}"
            )


def _shown(value: Any) -> str:
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _typed(value: Any, type_name: str | None) -> str:
    if value is None:
        return "none"
    return f"the value {_shown(value)} of type '{type_name or _guess(value)}'"


def _guess(value: Any) -> str:
    names = {bool: "bool", int: "signedint", str: "longstr", float: "double"}
    return names.get(type(value), type(value).__name__)
