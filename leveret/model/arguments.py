"""Declaration arguments: kept as JSON, compared and shown the way RabbitMQ does."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from leveret.model.errors import PreconditionFailed


def dump_arguments(arguments: Mapping[str, Any]) -> str:
    return json.dumps(_to_json(arguments), separators=(",", ":"))


def load_arguments(text: str) -> dict[str, Any]:
    loaded = json.loads(text, object_hook=_from_json)
    if not isinstance(loaded, dict):  # from before keys were escaped: a client's own table
        loaded = json.loads(text)
    if not isinstance(loaded, dict):
        raise ValueError(f"arguments are a table, not {type(loaded).__name__}")
    return loaded


def _to_json(value: Any) -> Any:
    """What JSON has no type for becomes a table whose only key says what it was."""
    if isinstance(value, Mapping):
        return _escaped({key: _to_json(inner) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    for mark, (kind, write, _) in _MARKED.items():
        if isinstance(value, kind):
            return {mark: write(value)}
    return value


def _from_json(table: dict[str, Any]) -> Any:
    if len(table) != 1:
        return table
    [(key, content)] = table.items()
    if key.startswith(_ESCAPED):
        return {key.removeprefix(_MARK): content}
    if key not in _MARKED:
        return table
    try:
        value = _MARKED[key][2](content)
        is_ours = _to_json(value) == table
    except (ArithmeticError, OSError, TypeError, ValueError):
        is_ours, value = False, None
    # Versions before keys were escaped stored clients' tables as they were.
    return value if is_ours else table


def _escaped(table: dict[str, Any]) -> dict[str, Any]:
    """A client's own table must not be taken for one of ours."""
    if len(table) != 1:
        return table
    [(key, content)] = table.items()
    return {_MARK + key: content} if key.startswith(_MARK) else table


def _from_octets(value: bytes) -> str:
    return base64.b64encode(value).decode()


_MARK, _ESCAPED = "!", "!!"
_MARKED: dict[str, tuple[type, Callable[[Any], str | float], Callable[[Any], Any]]] = {
    "!bytes": (bytes, _from_octets, base64.b64decode),
    "!bytearray": (bytearray, _from_octets, lambda text: bytearray(base64.b64decode(text))),
    "!decimal": (Decimal, str, Decimal),
    "!time": (datetime, datetime.timestamp, lambda seconds: datetime.fromtimestamp(seconds, UTC)),
}
"""The key, the type it stands for, how that is written and how it is read back."""


def same_argument(left: Any, right: Any) -> bool:
    """Integers of any width are one class; a string is never a number, nor true a 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def require_same(
    what: str, name: str, received: Any, current: Any, types: Mapping[str, str] | None = None
) -> None:
    """Refuse a re-declaration that says something else."""
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
    """Compare only the arguments that mean something; others may differ."""
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
