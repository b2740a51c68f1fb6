"""Policies: which one governs a queue or an exchange, and what it asks for.

Of all policies whose pattern matches and that apply to such a thing, the one with the highest
priority governs; beside it at most one operator policy, found the same way. Where both speak of a
limit the smaller one holds, else the operator's. Answers are remembered until a policy changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from leveret.broker.parameters import check_value
from leveret.broker.policy_keys import LIMITS, OPERATOR_KEYS, POLICY_KEYS
from leveret.broker.users import check_pattern, pattern
from leveret.model.errors import PreconditionFailed
from leveret.model.store import PolicyDefinition, Store

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
LARGEST_PRIORITY = (1 << 31) - 1
_MOST_REMEMBERED = 100_000


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
        """Refuse what could never work, in one sentence."""
        check_pattern(self.pattern)
        if self.apply_to not in APPLY_TO:
            raise PreconditionFailed(
                f"apply-to '{self.apply_to}' unrecognised; should be one of {', '.join(APPLY_TO)}"
            )
        if not -LARGEST_PRIORITY <= self.priority <= LARGEST_PRIORITY:
            raise PreconditionFailed(f"priority must be within {LARGEST_PRIORITY} of zero")
        if not self.definition:
            raise PreconditionFailed("no policy provided: the definition is empty")
        known = OPERATOR_KEYS if self.operator else POLICY_KEYS.keys()
        for key, value in self.definition.items():
            if key not in known:
                raise PreconditionFailed(self._unknown(key, known))
            wanted, accepts = POLICY_KEYS[key]
            if not accepts(value):
                raise PreconditionFailed(f"policy setting '{key}' must be {wanted}, not {value!r}")
        check_value(self.definition)

    def _unknown(self, key: str, known: Iterable[str]) -> str:
        import difflib  # for a mistake alone

        what = "operator policy" if self.operator else "policy"
        nearest = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
        return f"'{key}' is not a recognised {what} setting{hint}"

    def governs(self, name: str, kind: str) -> bool:
        return kind in APPLY_TO[self.apply_to] and pattern(self.pattern).search(name) is not None


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds for one queue or exchange."""

    policy: str | None = None
    operator_policy: str | None = None
    definition: Mapping[str, Any] = field(default_factory=dict)


class Policies:
    """`changed` is told the vhost whose queues and exchanges may be governed differently now."""

    def __init__(self, store: Store, changed: Callable[[str], None]) -> None:
        self._store = store
        self._changed = changed
        self._held: dict[tuple[str, bool, str], Policy] = {}
        self._remembered: dict[tuple[str, str, str], Effective] = {}
        self.on_change: Callable[[Policy, bool], None] = lambda policy, is_set: None

    def __iter__(self) -> Iterator[Policy]:
        return iter(list(self._held.values()))

    def get(self, vhost: str, name: str, operator: bool = False) -> Policy | None:
        return self._held.get((vhost, operator, name))

    def put(self, policy: Policy) -> None:
        policy.check()
        self._held[policy.vhost, policy.operator, policy.name] = policy
        self._store.save(_definition(policy))
        self._forget(policy.vhost)
        self.on_change(policy, True)

    def delete(self, policy: Policy) -> None:
        if self._held.pop((policy.vhost, policy.operator, policy.name), None) is not None:
            self._store.delete(_definition(policy))
            self._forget(policy.vhost)
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
        self._held[policy.vhost, policy.operator, policy.name] = policy

    def _forget(self, vhost: str) -> None:
        self._remembered.clear()
        self._changed(vhost)

    def effective(self, vhost: str, name: str, kind: str) -> Effective:
        """`kind` is "exchange" or the type of a queue."""
        if not self._held:
            return _NOTHING
        key = (vhost, name, kind)
        found = self._remembered.get(key)
        if found is None:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            found = self._remembered[key] = self._work_out(vhost, name, kind)
        return found

    def _work_out(self, vhost: str, name: str, kind: str) -> Effective:
        matching = [p for p in self if p.vhost == vhost and p.governs(name, kind)]
        user = _highest(p for p in matching if not p.operator)
        operator = _highest(p for p in matching if p.operator)
        return Effective(
            user.name if user else None,
            operator.name if operator else None,
            merge(user.definition if user else {}, operator.definition if operator else {}),
        )


_NOTHING = Effective()


def _highest(policies: Iterable[Policy]) -> Policy | None:
    return max(policies, key=lambda policy: policy.priority, default=None)


def merge(user: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**user, **operator}
    for key in user.keys() & operator.keys() & LIMITS:
        asked = (user[key], operator[key])  # below 0 is no limit
        merged[key] = min((value for value in asked if value >= 0), default=-1)
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
