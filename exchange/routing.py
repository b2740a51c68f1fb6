"""Routing: a walk from an exchange and routing keys to queue names, which ends on cycles.

An exchange without a matching binding passes the message to its alternate exchange. A queue that is
reached by several bindings, keys or paths is named once. The walk stops at a plugin exchange that
intercepts the message; the broker continues it from there later. No walk returns to an exchange
that the message has visited before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leveret.bindings import Binding, DestinationKind, PartitionMatcher
from leveret.exchange.exchange import Exchange
from leveret.exchange.plugin_kinds import PLUGIN_KINDS
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import Table

MAX_STEPS_OF_COPIES = 40_000
"""A step takes a microsecond at most, and nothing else runs in the meantime."""
_STEPS_PER_KEY = 3  # to ask an exchange for one key, in addition to what the matcher counts


class TooManySteps(PreconditionFailed):
    """Following all keys of a message would take too long. A single key is always followed."""


@dataclass(slots=True)
class Walk:
    """The names of the exchanges that a message has visited, and how many steps that took."""

    visited: set[str] = field(default_factory=set)
    steps: int = 0

    def count(self, steps: int, keys: Sequence[str]) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS_OF_COPIES and len(keys) > 1:
            raise TooManySteps(
                f"routing a message by {len(keys)} keys takes more than "
                f"{MAX_STEPS_OF_COPIES} steps: use fewer keys in CC and BCC"
            )


@dataclass(frozen=True, slots=True)
class Route:
    """Queue names in the order in which they were found.

    `reusable`: the same for equal keys until the topology changes. `plugin_exchanges` intercepted
    the message: the route ends there for now.
    """

    queues: tuple[str, ...]
    reusable: bool
    plugin_exchanges: tuple[Exchange, ...] = ()


def route(
    exchanges: Mapping[str, Exchange],
    start: Exchange,
    keys: Sequence[str],
    headers: Table,
    walk: Walk | None = None,
) -> Route:
    """Find the queues for a message; `walk` contains the exchanges it has visited already.

    If the walk contains `start`, that is a plugin exchange which the message now leaves.
    """
    queues: dict[str, None] = {}
    plugin_exchanges: list[Exchange] = []
    reusable = True
    walk = Walk() if walk is None else walk
    visited = walk.visited
    leaves_start = start.name in visited
    visited.add(start.name)
    pending = [start]
    while pending:
        exchange = pending.pop()
        reusable = reusable and _is_reusable(exchange, keys, headers)
        is_left = leaves_start and exchange is start
        if exchange.spec.kind in PLUGIN_KINDS and not is_left and exchange.intercepts(headers):
            plugin_exchanges.append(exchange)
            continue
        has_match = False
        for key in keys[:1] if exchange.matcher.ignores_key else keys:
            destinations = exchange.matcher.match(key, headers)
            walk.count(_STEPS_PER_KEY + exchange.matcher.last_steps + len(destinations), keys)
            for destination in destinations:
                has_match = True
                if destination.kind is DestinationKind.QUEUE:
                    queues[destination.name] = None
                else:
                    _visit(exchanges, destination.name, visited, pending)
        if not has_match and exchange.alternate is not None:
            _visit(exchanges, exchange.alternate, visited, pending)
    return Route(tuple(queues), reusable, tuple(plugin_exchanges))


def _is_reusable(exchange: Exchange, keys: Sequence[str], headers: Table) -> bool:
    matcher = exchange.matcher
    if exchange.spec.kind in PLUGIN_KINDS:
        return False
    if isinstance(matcher, PartitionMatcher):
        return all(matcher.depends_on_key(key, headers) for key in keys)
    return matcher.depends_on_key_alone


def _visit(
    exchanges: Mapping[str, Exchange], name: str, visited: set[str], pending: list[Exchange]
) -> None:
    exchange = exchanges.get(name)
    if exchange is not None and name not in visited:
        visited.add(name)
        pending.append(exchange)


def explain_route(
    exchanges: Mapping[str, Exchange], start: Exchange, keys: Sequence[str], headers: Table
) -> list[Binding]:
    """The bindings that a message would follow, in the order in which they are found."""
    followed: dict[Binding, None] = {}
    visited = {start.name}
    pending = [start]
    while pending:
        exchange = pending.pop()
        bindings = [one for key in keys for one in exchange.matcher.explain(key, headers)]
        followed.update(dict.fromkeys(bindings))
        for binding in bindings:
            if binding.destination.kind is DestinationKind.EXCHANGE:
                _visit(exchanges, binding.destination.name, visited, pending)
        if not bindings and exchange.alternate is not None:
            _visit(exchanges, exchange.alternate, visited, pending)
    return list(followed)
