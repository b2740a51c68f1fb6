"""Exchanges: one class, kinds by matcher, and the walk from an exchange to queue names."""

from exchange.exchange import SUPER_STREAM, Exchange, ExchangeSpec, known_kinds
from exchange.routing import Route, TooManySteps, Walk, explain_route, route
from exchange.stations import DEDUPLICATING, DELAYED, RECENT_HISTORY

__all__ = [
    "DEDUPLICATING",
    "DELAYED",
    "RECENT_HISTORY",
    "SUPER_STREAM",
    "Exchange",
    "ExchangeSpec",
    "Route",
    "TooManySteps",
    "Walk",
    "explain_route",
    "known_kinds",
    "route",
]
