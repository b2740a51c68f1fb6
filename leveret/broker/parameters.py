"""Runtime parameters: named JSON values, of a vhost and component or of the whole broker.

Limits of virtual hosts are parameters, too, as with RabbitMQ: component `vhost-limits`. Some
components are the broker's own: they are stored beside the others, and neither shown nor set here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from leveret.model.errors import PreconditionFailed
from leveret.model.store import ParameterDefinition, Store

GLOBAL = ""
CLUSTER_NAME = "cluster_name"
VHOST_LIMITS, LIMITS_NAME = "vhost-limits", "limits"
KNOWN_VHOST_LIMITS = ("max-connections", "max-queues")
KNOWN_USER_LIMITS = ("max-connections", "max-channels")
DEEPEST = 64
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1
CLOCK, KEYS = "x-clock", "x-deduplication "
"""Components of the broker's own: of the clock, and how those of seen keys begin."""

Key = tuple[str, str, str]
"""vhost, component, name; global parameters have neither vhost nor component"""


class Parameters:
    """`changed` is told the vhost whose limits may be others now."""

    def __init__(self, store: Store, changed: Callable[[str], None]) -> None:
        self._store = store
        self._changed = changed
        self._held: dict[Key, Any] = {}
        self.on_change: Callable[[Key, Any], None] = lambda key, value: None

    def __iter__(self) -> Iterator[tuple[Key, Any]]:
        return iter(list(self._held.items()))

    def __contains__(self, key: Key) -> bool:
        return key in self._held

    def get(self, vhost: str, component: str, name: str) -> Any:
        return self._held.get((vhost, component, name))

    def put(self, vhost: str, component: str, name: str, value: Any) -> None:
        require_not_own(component)
        check_value(value)
        if component == VHOST_LIMITS:
            check_limits(value, KNOWN_VHOST_LIMITS)
        self._held[vhost, component, name] = value
        self._store.save(ParameterDefinition(vhost, component, name, json.dumps(value)))
        self._changed(vhost)
        self.on_change((vhost, component, name), value)

    def delete(self, vhost: str, component: str, name: str) -> None:
        if (vhost, component, name) in self._held:
            del self._held[vhost, component, name]
            self._store.delete(ParameterDefinition(vhost, component, name))
            self._changed(vhost)
            self.on_change((vhost, component, name), None)

    def delete_vhost(self, vhost: str) -> None:
        for key, _ in self:
            if key[0] == vhost:
                self.delete(*key)

    def recover(self, definition: ParameterDefinition) -> None:
        key = (definition.vhost, definition.component, definition.name)
        self._held[key] = json.loads(definition.value)

    def vhost_limits(self, vhost: str) -> Mapping[str, int]:
        limits = self.get(vhost, VHOST_LIMITS, LIMITS_NAME)
        return limits if isinstance(limits, dict) else {}


def require_not_own(component: str) -> None:
    """What the broker itself keeps among parameters nobody else writes or removes."""
    if component == CLOCK or component.startswith(KEYS):
        raise PreconditionFailed(f"component '{component}' is the broker's own")


def check_limits(limits: Any, known: tuple[str, ...]) -> None:
    """Limits are whole numbers; a negative one means no limit."""
    if not isinstance(limits, dict):
        raise PreconditionFailed("limits must be an object of numbers")
    for name, value in limits.items():
        if name not in known:
            raise PreconditionFailed(f"unknown limit '{name}'; known are {', '.join(known)}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise PreconditionFailed(f"limit '{name}' must be a whole number, not {value!r}")


def check_value(value: Any) -> None:
    """Refuse what cannot be written as JSON again and again: that takes the stack, too."""
    level = [value]
    for _ in range(DEEPEST):
        for one in level:
            _check_number(one)
        nested = [one.values() if isinstance(one, dict) else one for one in level if _holds(one)]
        level = [inner for inside in nested for inner in inside]
        if not level:
            return
    raise PreconditionFailed(f"a value is at most {DEEPEST} levels deep")


def _check_number(value: Any) -> None:
    """Python reads 1e400 as infinity, and whole numbers of any length."""
    if isinstance(value, float) and not math.isfinite(value):
        raise PreconditionFailed(f"{value} is not a number that JSON can say")
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        raise PreconditionFailed(f"a number of {value.bit_length()} bits does not fit in 64")


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list)
