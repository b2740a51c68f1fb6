"""Headers matching. A binding's rule is parsed once, when it is bound.

A message is compared only with rules that an index finds by one header each, in the order in which
they were bound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from leveret.bindings.binding import Binding, Destination
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import Table

_BYTES = bytes | bytearray
MAX_FIELDS = 100_000  # some tens of milliseconds if a message has nearly all of these headers
_MODES = ("all", "any", "all-with-x", "any-with-x")

_IndexKey = tuple[str, Any]
_ANY_VALUE = object()
"""Stands for values that are not hashable, and for rules that accept every value of a header."""
_ALWAYS: _IndexKey = ("", _ANY_VALUE)


@dataclass(frozen=True, slots=True)
class _Rule:
    matches_all: bool
    fields: tuple[tuple[str, Any], ...]

    def matches(self, headers: Table) -> bool:
        results = (_field_matches(headers, name, expected) for name, expected in self.fields)
        return all(results) if self.matches_all else any(results)


def _parse(arguments: Mapping[str, Any]) -> _Rule:
    mode = arguments.get("x-match", "all")
    if mode not in _MODES:
        raise PreconditionFailed(
            f"Invalid x-match field value {mode!r}; expected all, any, all-with-x or any-with-x"
        )
    with_x = mode.endswith("-with-x")
    fields = tuple(
        (name, value)
        for name, value in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return _Rule(mode.startswith("all"), fields)


def _field_matches(headers: Table, name: str, expected: Any) -> bool:
    if name not in headers:
        return False
    return expected is None or same_value(headers[name], expected)


def same_value(left: Any, right: Any) -> bool:
    """Equal within one class of types: 5 of any integer width is 5, but never '5' or true."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return isinstance(left, int) == isinstance(right, int) and left == right
    if isinstance(left, _BYTES) and isinstance(right, _BYTES):
        return left == right  # a string that is not UTF-8 is one of the types, an array the other
    return type(left) is type(right) and bool(left == right)


class HeadersMatcher:
    """`steps`: the number of bindings and of all their fields, which may all match one message."""

    depends_on_key_alone = False
    ignores_key = True
    max_steps = MAX_FIELDS
    slow_reason = "bindings with too many fields"

    def __init__(self) -> None:
        self.steps = self.last_steps = 0
        self._numbers: dict[Binding, int] = {}
        self._rules: dict[int, tuple[Binding, _Rule]] = {}
        self._index = _HeaderIndex()
        self._next_number = count()

    def add(self, binding: Binding) -> None:
        rule = _parse(binding.arguments)
        number = self._numbers[binding] = next(self._next_number)
        self._rules[number] = (binding, rule)
        self._index.add(number, rule)
        self.steps += 1 + len(rule.fields)

    def remove(self, binding: Binding) -> None:
        number = self._numbers.pop(binding)
        _, rule = self._rules.pop(number)
        self._index.remove(number)
        self.steps -= 1 + len(rule.fields)

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]:
        return [binding.destination for binding in self.explain(routing_key, headers)]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        rules = self._rules
        candidates = [rules[number] for number in sorted(self._index.find(headers))]
        self.last_steps = len(candidates)
        return [binding for binding, rule in candidates if rule.matches(headers)]


class _HeaderIndex:
    """Finds the rules that may match a message; the rule itself decides.

    A rule that needs all of its fields is indexed by one of them, the one with the fewest rules so
    far; a rule that needs any of them, by each. Values are compared as Python does, which never
    tells values apart that are equal in a header.
    """

    def __init__(self) -> None:
        self._rules: dict[_IndexKey, set[int]] = {}
        self._keys: dict[int, list[_IndexKey]] = {}

    def add(self, number: int, rule: _Rule) -> None:
        keys = list(dict.fromkeys(_index_key(name, value) for name, value in rule.fields))
        if rule.matches_all:
            keys = [min(keys, key=self._count, default=_ALWAYS)]
        self._keys[number] = keys
        for key in keys:
            self._rules.setdefault(key, set()).add(number)

    def _count(self, key: _IndexKey) -> int:
        return len(self._rules.get(key, ()))

    def remove(self, number: int) -> None:
        for key in self._keys.pop(number):
            numbers = self._rules[key]
            numbers.remove(number)
            if not numbers:
                del self._rules[key]

    def find(self, headers: Mapping[str, Any]) -> set[int]:
        rules = self._rules
        numbers = set(rules.get(_ALWAYS, ()))
        for name, value in headers.items():
            for key in {_index_key(name, value), (name, _ANY_VALUE)}:
                if key in rules:
                    numbers |= rules[key]
        return numbers

    def is_empty(self) -> bool:
        return not self._rules and not self._keys


def _index_key(name: str, value: Any) -> _IndexKey:
    is_indexable = isinstance(value, str | int | float) and value == value  # NaN is not
    return (name, value if is_indexable else _ANY_VALUE)
