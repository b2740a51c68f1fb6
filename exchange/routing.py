"""From an exchange and keys to the names of queues: a walk that ends on cycles.

An exchange that interests nobody passes the message to its alternate exchange. A queue named by
several bindings, keys or paths is named once. At a station the walk ends for now; it is named, and
walked on from there later: never to an exchange where the message has been before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bindings import Binding, DestinationKind, PartitionMatcher
from exchange.exchange import Exchange
from exchange.stations import STATIONS
from leveret.model.tables import Table


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
    visited: set[str] | None = None,
) -> Route:
    """`visited`: the names of exchanges that are behind the message; what is found joins them.

    If `start` is among them it is a station that the message goes on from.
    """
    found: dict[str, None] = {}
    stations: list[Exchange] = []
    reusable = True
    visited = set() if visited is None else visited
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
            for destination in exchange.matcher.match(key, headers):
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
