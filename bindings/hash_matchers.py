"""Matchers that select one of their bindings for each message: by hash, by modulus, at random.

Consistent hashing is weighted rendezvous hashing: every binding computes a score for the message,
and the highest score wins. Adding or removing a binding moves only the messages that it wins or
loses. The routing key of such a binding is its weight.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any

from leveret.bindings.binding import Binding, Destination
from leveret.bindings.matchers import ConstantCost
from leveret.model.errors import PreconditionFailed
from leveret.model.message import Headers, decode_properties
from leveret.model.tables import Table

MAX_SCORES = 10_000  # about ten milliseconds
HASH_HEADER, HASH_PROPERTY = "hash-header", "hash-property"
_PROPERTIES = ("correlation_id", "message_id", "timestamp")


class _OneBindingMatcher(ConstantCost):
    """Bindings in a fixed order, of which `explain` selects one."""

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


class ConsistentHashMatcher(_OneBindingMatcher):
    max_steps = MAX_SCORES
    slow_reason = "too many bindings"

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
        self.steps = self.last_steps = 0
        self._scorers: list[_Scorer] | None = None
        """None after a change: rebuilt once, however many bindings were added or removed."""

    def add(self, binding: Binding) -> None:
        key = binding.routing_key
        if not (key.isascii() and key.isdigit() and int(key) > 0):
            raise PreconditionFailed(
                f"the binding key must be a whole number greater than 0, not '{key}'"
            )
        super().add(binding)
        self._on_change()

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        self._on_change()

    def _on_change(self) -> None:
        self._scorers = None
        self.steps = len(self._bindings)

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        if not self._bindings:
            return []
        hashed = self._hashed_value(routing_key, headers).encode()
        if self._scorers is None:
            self._scorers = [_Scorer(int(one.routing_key), one) for one in self._bindings]
        self.last_steps = len(self._scorers)
        return [max(self._scorers, key=lambda scorer: scorer.score(hashed)).binding]

    def _hashed_value(self, routing_key: str, headers: Table) -> str:
        if self._header is not None:
            return str(headers.get(self._header, ""))
        if self._property is not None:
            properties = headers.properties if isinstance(headers, Headers) else b""
            return str(decode_properties(properties).get(self._property, "")) if properties else ""
        return routing_key


class ModulusHashMatcher(_OneBindingMatcher):
    """Selects by the hash of the routing key modulo the number of bindings."""

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        if not self._bindings:
            return []
        return [self._bindings[_hash(routing_key.encode()) % len(self._bindings)]]


class RandomMatcher(_OneBindingMatcher):
    depends_on_key_alone = False

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        return [secrets.choice(self._bindings)] if self._bindings else []


class _Scorer:
    """Computes the rendezvous score of one binding."""

    __slots__ = ("_seed", "_weight", "binding")

    def __init__(self, weight: int, binding: Binding) -> None:
        self._weight = weight
        self._seed = _identity(binding).encode() + b"\0"
        self.binding = binding

    def score(self, hashed: bytes) -> float:
        uniform = (_hash(self._seed + hashed) + 0.5) / 2**64
        return -self._weight / math.log(min(uniform, 1 - 1e-16))


def _identity(binding: Binding) -> str:
    to = binding.destination
    return f"{to.kind}\0{to.name}\0{binding.routing_key}\0{binding.fingerprint}"


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
