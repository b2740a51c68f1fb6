"""Policies: which of them apply to a queue or an exchange, and the resulting definition.

Of all policies whose pattern matches and that apply to this type of object, the one with the
highest priority is used, together with at most one operator policy, chosen in the same way. If both
set a limit, the smaller one applies; for other keys, the operator policy wins. Results are cached
until a policy changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from leveret.broker.access.users import check_pattern, pattern
from leveret.broker.policies.keys import LIMITS, OPERATOR_KEYS, POLICY_KEYS
from leveret.broker.policies.parameters import check_value
from leveret.model.definitions import PolicyDefinition
from leveret.model.errors import PreconditionFailed
from leveret.model.store import Store

EXCHANGE = "exchange"
_QUEUE_KINDS = ("classic", "quorum", "stream")
APPLY_TO: dict[str, tuple[str, ...]] = {
    "all": (EXCHANGE, *_QUEUE_KINDS),
    "queues": _QUEUE_KINDS,
    "exchanges": (EXCHANGE,),
    "classic_queues": ("classic",),
    "quorum_queues": ("quorum",),
    "streams": ("stream",),
}
MAX_PRIORITY = (1 << 31) - 1
_MAX_CACHED = 100_000


@dataclass(frozen=True, slots=True)
class Policy:
    vhost: str
    name: str
    pattern: str
    definition: Mapping[str, Any]
    apply_to: str = "all"
    priority: int = 0
    operator: bool = False

    def check(self) -> None:
        """Refuse an invalid policy with a message of one sentence."""
        check_pattern(self.pattern)
        if self.apply_to not in APPLY_TO:
            raise PreconditionFailed(
                f"apply-to '{self.apply_to}' unrecognised; should be one of {', '.join(APPLY_TO)}"
            )
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise PreconditionFailed(f"priority must be within {MAX_PRIORITY} of zero")
        if not self.definition:
            raise PreconditionFailed("no policy provided: the definition is empty")
        known = OPERATOR_KEYS if self.operator else POLICY_KEYS.keys()
        for key, value in self.definition.items():
            if key not in known:
                raise PreconditionFailed(self._unknown(key, known))
            allowed, accepts = POLICY_KEYS[key]
            if not accepts(value):
                raise PreconditionFailed(f"policy setting '{key}' must be {allowed}, not {value!r}")
        check_value(self.definition)

    def _unknown(self, key: str, known: Iterable[str]) -> str:
        import difflib  # needed for errors only

        kind = "operator policy" if self.operator else "policy"
        nearest = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
        return f"'{key}' is not a recognised {kind} setting{hint}"

    def matches(self, name: str, kind: str) -> bool:
        return kind in APPLY_TO[self.apply_to] and pattern(self.pattern).search(name) is not None


@dataclass(frozen=True, slots=True)
class Effective:
    """The policies that apply to one queue or exchange, and their merged definition."""

    policy: str | None = None
    operator_policy: str | None = None
    definition: Mapping[str, Any] = field(default_factory=dict)


class Policies:
    """`changed` is called with the vhost in which a policy has changed."""

    def __init__(self, store: Store, changed: Callable[[str], None]) -> None:
        self._store = store
        self._changed = changed
        self._policies: dict[tuple[str, bool, str], Policy] = {}
        self._cache: dict[tuple[str, str, str], Effective] = {}
        self.on_change: Callable[[Policy, bool], None] = lambda policy, is_set: None

    def __iter__(self) -> Iterator[Policy]:
        return iter(list(self._policies.values()))

    def get(self, vhost: str, name: str, operator: bool = False) -> Policy | None:
        return self._policies.get((vhost, operator, name))

    def put(self, policy: Policy) -> None:
        policy.check()
        self._policies[policy.vhost, policy.operator, policy.name] = policy
        self._store.save(_definition(policy))
        self._changed_in(policy.vhost)
        self.on_change(policy, True)

    def delete(self, policy: Policy) -> None:
        if self._policies.pop((policy.vhost, policy.operator, policy.name), None) is not None:
            self._store.delete(_definition(policy))
            self._changed_in(policy.vhost)
            self.on_change(policy, False)

    def delete_vhost(self, vhost: str) -> None:
        for policy in self:
            if policy.vhost == vhost:
                self.delete(policy)

    def recover(self, definition: PolicyDefinition) -> None:
        policy = Policy(
            definition.vhost,
            definition.name,
            definition.pattern,
            json.loads(definition.definition),
            definition.apply_to,
            definition.priority,
            definition.operator,
        )
        self._policies[policy.vhost, policy.operator, policy.name] = policy

    def _changed_in(self, vhost: str) -> None:
        self._cache.clear()
        self._changed(vhost)

    def effective(self, vhost: str, name: str, kind: str) -> Effective:
        """`kind` is "exchange" or the type of a queue."""
        if not self._policies:
            return _NONE
        key = (vhost, name, kind)
        effective = self._cache.get(key)
        if effective is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            effective = self._cache[key] = self._evaluate(vhost, name, kind)
        return effective

    def _evaluate(self, vhost: str, name: str, kind: str) -> Effective:
        matching = [p for p in self if p.vhost == vhost and p.matches(name, kind)]
        user = _highest(p for p in matching if not p.operator)
        operator = _highest(p for p in matching if p.operator)
        return Effective(
            user.name if user else None,
            operator.name if operator else None,
            merge(user.definition if user else {}, operator.definition if operator else {}),
        )


_NONE = Effective()


def _highest(policies: Iterable[Policy]) -> Policy | None:
    return max(policies, key=lambda policy: policy.priority, default=None)


def merge(user: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**user, **operator}
    for key in user.keys() & operator.keys() & LIMITS:
        limits = (user[key], operator[key])  # negative: no limit
        merged[key] = min((limit for limit in limits if limit >= 0), default=-1)
    return merged


def _definition(policy: Policy) -> PolicyDefinition:
    return PolicyDefinition(
        policy.vhost,
        policy.name,
        policy.operator,
        policy.pattern,
        policy.apply_to,
        policy.priority,
        json.dumps(policy.definition),
    )
