"""An exchange holds its bindings and a matcher; its type decides which matcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leveret.bindings import (
    Binding,
    ConsistentHashMatcher,
    DirectMatcher,
    FanoutMatcher,
    HeadersMatcher,
    Matcher,
    ModulusHashMatcher,
    PartitionMatcher,
    RandomMatcher,
    TopicMatcher,
)
from leveret.exchange.plugin_kinds import (
    DEDUPLICATING,
    DELAYED,
    DELAYED_TYPE,
    RECENT_HISTORY,
    check_plugin_arguments,
    intercepts,
)
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import Table

_MATCHERS: dict[str, Callable[[Mapping[str, Any]], Matcher]] = {
    "direct": lambda arguments: DirectMatcher(),
    "fanout": lambda arguments: FanoutMatcher(),
    "topic": lambda arguments: TopicMatcher(),
    "headers": lambda arguments: HeadersMatcher(),
    "x-consistent-hash": ConsistentHashMatcher,
    "x-modulus-hash": lambda arguments: ModulusHashMatcher(),
    "x-random": lambda arguments: RandomMatcher(),
    "x-local-random": lambda arguments: RandomMatcher(),
    DELAYED: lambda arguments: _MATCHERS[arguments[DELAYED_TYPE]](arguments),
    DEDUPLICATING: lambda arguments: FanoutMatcher(),
    RECENT_HISTORY: lambda arguments: FanoutMatcher(),
}


SUPER_STREAM = "x-super-stream"
"""The argument that makes a direct exchange route to the partitions of a partitioned log."""

ALTERNATE = "alternate-exchange"


def known_kinds() -> list[str]:
    return sorted(_MATCHERS)


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """What a client declares; declaring an equal spec again is a no-op."""

    name: str
    kind: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def alternate(self) -> str | None:
        value = self.arguments.get(ALTERNATE)
        return value if isinstance(value, str) else None

    def require_alternate(self, where: str) -> None:
        """Refuse an alternate exchange that is not a string; a stored one is ignored instead."""
        if ALTERNATE in self.arguments and self.alternate is None:
            raise PreconditionFailed(
                f"invalid type for arg '{ALTERNATE}' in {where}: it must be a string, "
                f"not {self.arguments[ALTERNATE]!r:.100}"
            )


class Exchange:
    """`had_bindings`: an auto-delete exchange is deleted only after it had a binding."""

    def __init__(self, spec: ExchangeSpec, matcher: Matcher | None = None) -> None:
        if matcher is None and spec.kind not in _MATCHERS:
            raise PreconditionFailed(f"unknown exchange type '{spec.kind}'")
        check_plugin_arguments(spec.kind, spec.arguments, known_kinds())
        self.spec = spec
        self.name = spec.name
        self.alternate = spec.alternate
        self.matcher: Matcher = matcher or _make_matcher(spec)
        self.bindings: dict[Binding, None] = {}
        self.had_bindings = False
        self.published_in = 0
        self.published_out = 0

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.spec.kind} bindings={len(self.bindings)}>"

    def bind(self, binding: Binding, is_stored: bool = False) -> bool:
        """Add a binding; False if it exists already.

        A stored binding was accepted before and stays, however slow it makes matching.
        """
        if binding in self.bindings:
            return False
        before = self.matcher.steps
        self.matcher.add(binding)
        if not is_stored:
            try:
                self.check_match_cost(before)
            except PreconditionFailed:
                self.matcher.remove(binding)
                raise
        self.bindings[binding] = None
        self.had_bindings = True
        return True

    def check_match_cost(self, before: int = 0) -> None:
        """Refuse bindings that make matching too slow, unless `before` was as slow."""
        matcher = self.matcher
        if matcher.steps > max(before, matcher.max_steps):
            raise PreconditionFailed(
                f"exchange '{self.name}' has {matcher.slow_reason}: matching one message could "
                f"take {matcher.steps} steps, and the maximum is {matcher.max_steps}"
            )

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; False if it does not exist."""
        if binding not in self.bindings:
            return False
        self.matcher.remove(binding)
        del self.bindings[binding]
        return True

    def intercepts(self, headers: Table) -> bool:
        """Whether a plugin exchange intercepts a message with these headers before matching."""
        return intercepts(self.spec.kind, headers)

    @property
    def is_auto_deletable(self) -> bool:
        """Whether this is an auto-delete exchange whose last binding was removed."""
        return self.spec.auto_delete and self.had_bindings and not self.bindings


def _make_matcher(spec: ExchangeSpec) -> Matcher:
    if spec.kind == "direct" and spec.arguments.get(SUPER_STREAM) is True:
        return PartitionMatcher()
    return _MATCHERS[spec.kind](spec.arguments)
