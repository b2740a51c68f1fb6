"""Exchanges: one class, kinds by matcher, and the walk from an exchange to queue names."""

from exchange.exchange import SUPER_STREAM, Exchange, ExchangeSpec, known_kinds
from exchange.routing import Route, explain_route, route

__all__ = [
    "SUPER_STREAM",
    "Exchange",
    "ExchangeSpec",
    "Route",
    "explain_route",
    "known_kinds",
    "route",
]
