"""Which header rules can hold at all: found by one field of each, not by looking at every rule.

A rule that wants all of its fields is filed under one of them, the one with the fewest rules so
far; a rule that wants any of them under each. Values are filed by what they are equal to in Python,
which is never narrower than what is equal in a header. What is found is a guess; the rule decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_Place = tuple[str, Any]
_PRESENT = object()
"""Stands for every value that cannot be filed, and for those that may be anything."""
_ALWAYS: _Place = ("", _PRESENT)


class HeaderIndex:
    """Rules by number."""

    def __init__(self) -> None:
        self._filed: dict[_Place, set[int]] = {}
        self._places: dict[int, list[_Place]] = {}

    def add(self, rule: int, fields: Iterable[tuple[str, Any]], wants_all: bool) -> None:
        places = list(dict.fromkeys(_place(name, value) for name, value in fields))
        if wants_all:
            places = [min(places, key=self._count, default=_ALWAYS)]
        self._places[rule] = places
        for place in places:
            self._filed.setdefault(place, set()).add(rule)

    def _count(self, place: _Place) -> int:
        return len(self._filed.get(place, ()))

    def remove(self, rule: int) -> None:
        for place in self._places.pop(rule):
            rules = self._filed[place]
            rules.remove(rule)
            if not rules:
                del self._filed[place]

    def find(self, headers: Mapping[str, Any]) -> set[int]:
        filed = self._filed
        found = set(filed.get(_ALWAYS, ()))
        for name, value in headers.items():
            for place in {_place(name, value), (name, _PRESENT)}:
                if place in filed:
                    found |= filed[place]
        return found


def _place(name: str, value: Any) -> _Place:
    can_be_filed = isinstance(value, str | int | float) and value == value  # NaN is not
    return (name, value if can_be_filed else _PRESENT)
