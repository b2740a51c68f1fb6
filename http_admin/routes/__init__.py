"""One module per group of endpoints; `ROUTERS` is all of them."""

from __future__ import annotations

from fastapi import APIRouter

from http_admin.routes import (
    connections,
    docs,
    health,
    live,
    metrics,
    operations,
    overview,
    session,
    topology,
)

ROUTERS: tuple[APIRouter, ...] = (
    overview.router,
    session.router,
    health.router,
    live.router,
    metrics.router,
    operations.router,
    connections.router,
    docs.router,
    topology.router,
)
