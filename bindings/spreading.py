"""Matchers that give each message to one of their bindings: by hash, by remainder, by chance.

Consistent hashing is weighted rendezvous hashing: every binding draws a number for the message and
the best draw wins, so adding or removing one moves only what it wins or loses. The routing key of
such a binding is its weight.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any

from bindings.binding import Binding, Destination
from bindings.matchers import Quick
from leveret.model.errors import PreconditionFailed
from leveret.model.message import Headers
from leveret.model.properties import decode_properties
from leveret.model.tables import Table

MOST_DRAWS = 10_000  # some ten milliseconds
HASH_HEADER, HASH_PROPERTY = "hash-header", "hash-property"
_PROPERTIES = ("correlation_id", "message_id", "timestamp")


class _OneOfThem(Quick):
    """Bindings in a fixed order; `explain` names the chosen one."""

    depends_on_key_alone = True
    ignores_key = False

    def __init__(self) -> None:
        self._bindings: list[Binding] = []

    def add(self, binding: Binding) -> None:
        insort(self._bindings, binding, key=_identity)

    def remove(self, binding: Binding) -> None:
        del self._bindings[bisect_left(self._bindings, _identity(binding), key=_identity)]

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]:
        return [binding.destination for binding in self.explain(routing_key, headers)]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        raise NotImplementedError


class ConsistentHashMatcher(_OneOfThem):
    most_steps = MOST_DRAWS
    slow_by = "too many bindings"

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._header = arguments.get(HASH_HEADER)
        self._property = arguments.get(HASH_PROPERTY)
        if self._header is not None and self._property is not None:
            raise PreconditionFailed(f"{HASH_HEADER} and {HASH_PROPERTY} are mutually exclusive")
        if self._property is not None and self._property not in _PROPERTIES:
            raise PreconditionFailed(
                f"unsupported property: {self._property}; supported are {', '.join(_PROPERTIES)}"
            )
        self.depends_on_key_alone = self._header is None and self._property is None
        self.ignores_key = not self.depends_on_key_alone
        self.steps = self.looked = 0
        self._draws: list[_Draw] | None = None
        """None: to be made again, once for however many bindings came or went."""

    def add(self, binding: Binding) -> None:
        key = binding.routing_key
        if not (key.isascii() and key.isdigit() and int(key) > 0):
            raise PreconditionFailed(
                f"the binding key must be a whole number greater than 0, not '{key}'"
            )
        super().add(binding)
        self._changed()

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        self._changed()

    def _changed(self) -> None:
        self._draws = None
        self.steps = len(self._bindings)

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        if not self._bindings:
            return []
        chosen = self._chosen(routing_key, headers).encode()
        if self._draws is None:
            self._draws = [_Draw(int(one.routing_key), one) for one in self._bindings]
        self.looked = len(self._draws)
        return [max(self._draws, key=lambda one: one.drawn(chosen)).binding]

    def _chosen(self, routing_key: str, headers: Table) -> str:
        if self._header is not None:
            return str(headers.get(self._header, ""))
        if self._property is not None:
            properties = headers.properties if isinstance(headers, Headers) else b""
            return str(decode_properties(properties).get(self._property, "")) if properties else ""
        return routing_key


class ModulusHashMatcher(_OneOfThem):
    """The remainder of a hash of the routing key."""

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        if not self._bindings:
            return []
        return [self._bindings[_number(routing_key.encode()) % len(self._bindings)]]


class RandomMatcher(_OneOfThem):
    depends_on_key_alone = False

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        return [secrets.choice(self._bindings)] if self._bindings else []


def _identity(binding: Binding) -> str:
    to = binding.destination
    return f"{to.kind}\0{to.name}\0{binding.routing_key}\0{binding.fingerprint}"


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


class _Draw:
    """What a binding draws with."""

    __slots__ = ("_seed", "_weight", "binding")

    def __init__(self, weight: int, binding: Binding) -> None:
        self._weight = weight
        self._seed = _identity(binding).encode() + b"\0"
        self.binding = binding

    def drawn(self, chosen: bytes) -> float:
        drawn = (_number(self._seed + chosen) + 0.5) / 2**64
        return -self._weight / math.log(min(drawn, 1 - 1e-16))
