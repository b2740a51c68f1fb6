"""One module per group of endpoints; `ROUTERS` is all of them."""

from __future__ import annotations

from fastapi import APIRouter

from http_admin.routes import (
    connections,
    overview,
    topology,
)

ROUTERS: tuple[APIRouter, ...] = (
    overview.router,
    connections.router,
    topology.router,
)
