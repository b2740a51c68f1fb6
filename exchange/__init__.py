"""Exchanges: one class for all types, which differ by matcher, and routing to queue names."""

from leveret.exchange.exchange import SUPER_STREAM, Exchange, ExchangeSpec, known_kinds
from leveret.exchange.plugin_kinds import DEDUPLICATING, DELAYED, RECENT_HISTORY
from leveret.exchange.routing import Route, TooManySteps, Walk, explain_route, route

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

if __name__ != "leveret.exchange":  # the folder of a checkout whose root is on sys.path
    raise ImportError("import leveret.exchange instead of exchange", name=__name__)
