"""From an exchange and keys to the names of queues: a walk that ends on cycles.

An exchange that interests nobody passes the message to its alternate exchange. A queue named by
several bindings, keys or paths is named once. At a station the walk ends for now; it is named, and
walked on from there later: never to an exchange where the message has been before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bindings import Binding, DestinationKind, PartitionMatcher
from exchange.exchange import Exchange
from exchange.stations import STATIONS
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import Table

MOST_STEPS_OF_COPIES = 40_000
"""A step is a microsecond at most: for this long nobody else has their turn."""
_STEPS_EACH = 3  # to ask an exchange about a key, whatever it has to look at


class TooManySteps(PreconditionFailed):
    """To follow all keys of a message would take too long. One key is always followed."""


@dataclass(slots=True)
class Walk:
    """The exchanges a message has been to, by name, and how many steps that took."""

    visited: set[str] = field(default_factory=set)
    steps: int = 0

    def took(self, steps: int, keys: Sequence[str]) -> None:
        self.steps += steps
        if self.steps > MOST_STEPS_OF_COPIES and len(keys) > 1:
            raise TooManySteps(
                f"to route a message by {len(keys)} keys takes more than "
                f"{MOST_STEPS_OF_COPIES} steps here: it has too many in CC and BCC"
            )


@dataclass(frozen=True, slots=True)
class Route:
    """Queue names in order of discovery; `reusable` until the topology changes."""

    queues: tuple[str, ...]
    reusable: bool
    stations: tuple[Exchange, ...] = ()


def route(
    exchanges: Mapping[str, Exchange],
    start: Exchange,
    keys: Sequence[str],
    headers: Table,
    walk: Walk | None = None,
) -> Route:
    """`walk`: what is behind the message already; what is found joins it.

    If the message has been at `start`, it is a station that it goes on from.
    """
    found: dict[str, None] = {}
    stations: list[Exchange] = []
    reusable = True
    walk = Walk() if walk is None else walk
    visited = walk.visited
    goes_on = start.name in visited
    visited.add(start.name)
    waiting = [start]
    while waiting:
        exchange = waiting.pop()
        reusable = reusable and _is_reusable(exchange, keys, headers)
        is_passed = goes_on and exchange is start
        if exchange.spec.kind in STATIONS and not is_passed and exchange.stops(headers):
            stations.append(exchange)
            continue
        interested = False
        for key in keys[:1] if exchange.matcher.ignores_key else keys:
            destinations = exchange.matcher.match(key, headers)
            walk.took(_STEPS_EACH + exchange.matcher.looked + len(destinations), keys)
            for destination in destinations:
                interested = True
                if destination.kind is DestinationKind.QUEUE:
                    found[destination.name] = None
                else:
                    _visit(exchanges, destination.name, visited, waiting)
        if not interested and exchange.alternate is not None:
            _visit(exchanges, exchange.alternate, visited, waiting)
    return Route(tuple(found), reusable, tuple(stations))


def _is_reusable(exchange: Exchange, keys: Sequence[str], headers: Table) -> bool:
    matcher = exchange.matcher
    if exchange.spec.kind in STATIONS:
        return False
    if isinstance(matcher, PartitionMatcher):
        return all(matcher.is_settled_by(key, headers) for key in keys)
    return matcher.depends_on_key_alone


def _visit(
    exchanges: Mapping[str, Exchange], name: str, visited: set[str], waiting: list[Exchange]
) -> None:
    exchange = exchanges.get(name)
    if exchange is not None and name not in visited:
        visited.add(name)
        waiting.append(exchange)


def explain_route(
    exchanges: Mapping[str, Exchange], start: Exchange, keys: Sequence[str], headers: Table
) -> list[Binding]:
    """The bindings a message would pass through, in the order they are met."""
    passed: dict[Binding, None] = {}
    visited = {start.name}
    waiting = [start]
    while waiting:
        exchange = waiting.pop()
        hits = [hit for key in keys for hit in exchange.matcher.explain(key, headers)]
        passed.update(dict.fromkeys(hits))
        for hit in hits:
            if hit.destination.kind is DestinationKind.EXCHANGE:
                _visit(exchanges, hit.destination.name, visited, waiting)
        if not hits and exchange.alternate is not None:
            _visit(exchanges, exchange.alternate, visited, waiting)
    return list(passed)
