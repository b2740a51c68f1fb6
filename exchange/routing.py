"""From an exchange and keys to the names of queues: a walk that ends on cycles.

An exchange that interests nobody passes the message to its alternate exchange. A queue named by
several bindings, keys or paths is named once. At a station the walk ends for now; it is named, and
walked on from there later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    passed: Collection[Exchange] = (),
) -> Route:
    """`passed` are stations the message has been through already."""
    found: dict[str, None] = {}
    stations: list[Exchange] = []
    reusable = True
    visited = {start.name}
    waiting = [start]
    while waiting:
        exchange = waiting.pop()
        reusable = reusable and _is_reusable(exchange, keys, headers)
        if exchange.spec.kind in STATIONS and exchange not in passed and exchange.stops(headers):
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
