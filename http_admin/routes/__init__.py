"""One module per group of endpoints; `ROUTERS` is all of them."""

from __future__ import annotations

from fastapi import APIRouter

from http_admin.routes import (
    audit,
    connections,
    definitions,
    docs,
    health,
    history,
    live,
    log_members,
    logs,
    messages,
    metrics,
    operations,
    overview,
    parameters,
    permissions,
    policies,
    scheduled,
    session,
    streams,
    topology,
    users,
    vhosts,
)

ROUTERS: tuple[APIRouter, ...] = (
    overview.router,
    session.router,
    health.router,
    history.router,
    live.router,
    metrics.router,
    operations.router,
    connections.router,
    docs.router,
    audit.router,
    topology.router,
    scheduled.router,
    messages.router,
    vhosts.router,
    users.router,
    permissions.router,
    policies.router,
    parameters.router,
    definitions.router,
    logs.router,
    log_members.router,
    streams.router,
)
