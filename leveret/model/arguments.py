"""Declaration arguments: kept as JSON, compared and shown the way RabbitMQ does."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from leveret.model.errors import PreconditionFailed


def dump_arguments(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), default=_to_json, separators=(",", ":"))


def load_arguments(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text, object_hook=_from_json)
    return loaded


def _to_json(value: Any) -> dict[str, str | float]:
    if isinstance(value, bytes | bytearray):
        return {"!bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"!decimal": str(value)}
    if isinstance(value, datetime):
        return {"!time": value.timestamp()}
    raise TypeError(f"{type(value).__name__} cannot be an argument")


def _from_json(value: dict[str, Any]) -> Any:
    if len(value) == 1:
        (key, content), *_ = value.items()
        if key == "!bytes":
            return base64.b64decode(content)
        if key == "!decimal":
            return Decimal(content)
        if key == "!time":
            return datetime.fromtimestamp(content, UTC)
    return value


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
