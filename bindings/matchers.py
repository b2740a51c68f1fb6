"""The matcher port, and the two kinds that are a dictionary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol

from bindings.binding import Binding, Destination
from leveret.model.tables import Table


class Matcher(Protocol):
    """Who is interested in a message.

    `depends_on_key_alone` promises that equal routing keys give equal answers until the bindings
    change, so that the answer may be kept. `ignores_key`: all keys of a message give the same one.
    `steps`: how much a match may have to look at, where that depends on what is bound;
    `most_steps`: how much it should, and `slow_by` what makes it more; `looked`: how much the last
    match has looked at beside what it found.
    """

    depends_on_key_alone: bool
    ignores_key: bool
    steps: int
    most_steps: int
    looked: int
    slow_by: str

    def add(self, binding: Binding) -> None: ...

    def remove(self, binding: Binding) -> None: ...

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]: ...

    def explain(self, routing_key: str, headers: Table) -> list[Binding]: ...


class Quick:
    """A match takes no longer the more is bound, but for what it finds."""

    steps = 0
    most_steps = 0
    looked = 0
    slow_by = ""


class DirectMatcher(Quick):
    """Exact key."""

    depends_on_key_alone = True
    ignores_key = False

    def __init__(self) -> None:
        self._by_key: dict[str, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.routing_key, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        held = self._by_key[binding.routing_key]
        del held[binding]
        if not held:
            del self._by_key[binding.routing_key]

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]:
        return [binding.destination for binding in self._by_key.get(routing_key, ())]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        return list(self._by_key.get(routing_key, ()))


class FanoutMatcher(Quick):
    """Everybody."""

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
