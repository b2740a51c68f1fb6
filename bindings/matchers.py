"""The matcher port, and the matchers of direct and fanout exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol

from leveret.bindings.binding import Binding, Destination
from leveret.model.tables import Table


class Matcher(Protocol):
    """Finds the destinations of a message among the bindings of one exchange.

    `depends_on_key_alone`: equal routing keys give equal results until the bindings change, so
    results may be cached. `ignores_key`: all keys of a message give the same result.

    `steps` is how many steps a match may take at worst, if that depends on the bindings;
    `max_steps` is how many it should take, and `slow_reason` names what makes it take more.
    `last_steps` is how many steps the last match took, apart from its results.
    """

    depends_on_key_alone: bool
    ignores_key: bool
    steps: int
    max_steps: int
    last_steps: int
    slow_reason: str

    def add(self, binding: Binding) -> None: ...

    def remove(self, binding: Binding) -> None: ...

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]: ...

    def explain(self, routing_key: str, headers: Table) -> list[Binding]: ...


class ConstantCost:
    """For matchers whose cost does not grow with their bindings, apart from the results."""

    steps = 0
    max_steps = 0
    last_steps = 0
    slow_reason = ""


class DirectMatcher(ConstantCost):
    """Matches bindings with exactly this key."""

    depends_on_key_alone = True
    ignores_key = False

    def __init__(self) -> None:
        self._by_key: dict[str, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.routing_key, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        bindings = self._by_key[binding.routing_key]
        del bindings[binding]
        if not bindings:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]:
        return [binding.destination for binding in self._by_key.get(routing_key, ())]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        return list(self._by_key.get(routing_key, ()))


class FanoutMatcher(ConstantCost):
    """Matches every binding."""

    depends_on_key_alone = True
    ignores_key = True

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}
        self._destinations: Counter[Destination] = Counter()

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None
        self._destinations[binding.destination] += 1

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding]
        self._destinations[binding.destination] -= 1
        if not self._destinations[binding.destination]:
            del self._destinations[binding.destination]

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]:
        return self._destinations

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        return list(self._bindings)
