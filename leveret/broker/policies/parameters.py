"""Runtime parameters: named JSON values, of a vhost and component or of the whole broker.

As with RabbitMQ, the limits of a vhost are parameters of the component `vhost-limits`. Some
components are internal to the broker: they are stored with the others but cannot be read or set as
parameters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leveret.model.definitions import ParameterDefinition
from leveret.model.errors import PreconditionFailed
from leveret.model.store import Store

GLOBAL = ""
CLUSTER_NAME = "cluster_name"
VHOST_LIMITS, LIMITS_NAME = "vhost-limits", "limits"
KNOWN_VHOST_LIMITS = ("max-connections", "max-queues")
KNOWN_USER_LIMITS = ("max-connections", "max-channels")
MAX_DEPTH = 64
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 64) - 1
CLOCK, IMPORT, KEYS = "x-clock", "x-import", "x-deduplication "
"""Internal components: the clock, an unfinished import, and the prefix of deduplication keys."""

Key = tuple[str, str, str]
"""vhost, component, name; global parameters have neither vhost nor component"""


class Parameters:
    """`changed` is called with a vhost whose limits may have changed."""

    def __init__(self, store: Store, changed: Callable[[str], None]) -> None:
        self._store = store
        self._changed = changed
        self._values: dict[Key, Any] = {}
        self.on_change: Callable[[Key, Any], None] = lambda key, value: None

    def __iter__(self) -> Iterator[tuple[Key, Any]]:
        return iter(list(self._values.items()))

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def get(self, vhost: str, component: str, name: str) -> Any:
        return self._values.get((vhost, component, name))

    def put(self, vhost: str, component: str, name: str, value: Any) -> None:
        require_user_component(component)
        check_value(value)
        if component == VHOST_LIMITS:
            check_limits(value, KNOWN_VHOST_LIMITS)
        self._values[vhost, component, name] = value
        self._store.save(ParameterDefinition(vhost, component, name, json.dumps(value)))
        self._changed(vhost)
        self.on_change((vhost, component, name), value)

    def delete(self, vhost: str, component: str, name: str) -> None:
        if (vhost, component, name) in self._values:
            del self._values[vhost, component, name]
            self._store.delete(ParameterDefinition(vhost, component, name))
            self._changed(vhost)
            self.on_change((vhost, component, name), None)

    def delete_vhost(self, vhost: str) -> None:
        for key, _ in self:
            if key[0] == vhost:
                self.delete(*key)

    def recover(self, definition: ParameterDefinition) -> None:
        key = (definition.vhost, definition.component, definition.name)
        self._values[key] = json.loads(definition.value)

    def vhost_limits(self, vhost: str) -> Mapping[str, int]:
        limits = self.get(vhost, VHOST_LIMITS, LIMITS_NAME)
        return limits if isinstance(limits, dict) else {}


def require_user_component(component: str) -> None:
    """Refuse to write or delete a parameter of an internal component."""
    if component in (CLOCK, IMPORT) or component.startswith(KEYS):
        raise PreconditionFailed(f"component '{component}' is reserved for the broker")


def check_limits(limits: Any, known: tuple[str, ...]) -> None:
    """Check an object of limits: whole numbers, a negative one meaning no limit."""
    if not isinstance(limits, dict):
        raise PreconditionFailed("limits must be an object with whole numbers")
    for name, value in limits.items():
        if name not in known:
            raise PreconditionFailed(f"unknown limit '{name}'; use one of {', '.join(known)}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise PreconditionFailed(f"limit '{name}' must be a whole number, not {value!r}")


def check_value(value: Any) -> None:
    """Refuse a value that is too deep or too large to be written as JSON again."""
    level = [value]
    for _ in range(MAX_DEPTH):
        for item in level:
            _check_number(item)
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [
            item
            for container in containers
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return
    raise PreconditionFailed(f"a value may have at most {MAX_DEPTH} levels of nesting")


def _check_number(value: Any) -> None:
    """Python parses 1e400 as infinity, and integers of any length."""
    if isinstance(value, float) and not math.isfinite(value):
        raise PreconditionFailed(f"{value} is not a valid JSON number")
    if isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
        raise PreconditionFailed(f"a number of {value.bit_length()} bits does not fit into 64 bits")
