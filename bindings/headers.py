"""Headers matching. A binding's rule is parsed once, when it is bound.

A message is compared with the rules that have a field of it (`header_index.py`), in the order in
which they were bound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from bindings.binding import Binding, Destination
from bindings.header_index import HeaderIndex
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import Table

_OCTETS = bytes | bytearray
MOST_FIELDS = 100_000  # some tens of milliseconds if a message has nearly all that are wanted
_MODES = ("all", "any", "all-with-x", "any-with-x")


@dataclass(frozen=True, slots=True)
class _Rule:
    wants_all: bool
    fields: tuple[tuple[str, Any], ...]

    def holds(self, headers: Table) -> bool:
        hits = (_field_matches(headers, key, wanted) for key, wanted in self.fields)
        return all(hits) if self.wants_all else any(hits)


def _parse(arguments: Mapping[str, Any]) -> _Rule:
    mode = arguments.get("x-match", "all")
    if mode not in _MODES:
        raise PreconditionFailed(
            f"Invalid x-match field value {mode!r}; expected all, any, all-with-x or any-with-x"
        )
    with_x = mode.endswith("-with-x")
    fields = tuple(
        (key, value)
        for key, value in arguments.items()
        if key != "x-match" and (with_x or not key.startswith("x-"))
    )
    return _Rule(mode.startswith("all"), fields)


def _field_matches(headers: Table, key: str, wanted: Any) -> bool:
    if key not in headers:
        return False
    return wanted is None or same_value(headers[key], wanted)


def same_value(left: Any, right: Any) -> bool:
    """Equal within one class of types: 5 of any integer width is 5, but never '5' or true."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return isinstance(left, int) == isinstance(right, int) and left == right
    if isinstance(left, _OCTETS) and isinstance(right, _OCTETS):
        return left == right  # a text that is not UTF-8 comes as the one, an array as the other
    return type(left) is type(right) and bool(left == right)


class HeadersMatcher:
    """`steps`: the fields of all bindings, and each binding: so much may fit one message."""

    depends_on_key_alone = False
    ignores_key = True
    most_steps = MOST_FIELDS
    slow_by = "bindings with too many fields"

    def __init__(self) -> None:
        self.steps = self.looked = 0
        self._numbers: dict[Binding, int] = {}
        self._held: dict[int, tuple[Binding, _Rule]] = {}
        self._index = HeaderIndex()
        self._next = count()

    def add(self, binding: Binding) -> None:
        rule = _parse(binding.arguments)
        number = self._numbers[binding] = next(self._next)
        self._held[number] = (binding, rule)
        self._index.add(number, rule.fields, rule.wants_all)
        self.steps += 1 + len(rule.fields)

    def remove(self, binding: Binding) -> None:
        number = self._numbers.pop(binding)
        _, rule = self._held.pop(number)
        self._index.remove(number)
        self.steps -= 1 + len(rule.fields)

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]:
        return [binding.destination for binding in self.explain(routing_key, headers)]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        held = self._held
        candidates = [held[number] for number in sorted(self._index.find(headers))]
        self.looked = len(candidates)
        return [binding for binding, rule in candidates if rule.holds(headers)]
