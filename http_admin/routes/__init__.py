"""One module for each group of endpoints; `ROUTERS` are all of them.

Endpoints and dependencies are coroutines: FastAPI would run a plain function on a worker thread,
and the broker's objects belong to the event loop's thread.
"""

from __future__ import annotations

from fastapi import APIRouter

from leveret.http_admin.routes import (
    audit,
    bindings,
    connections,
    definitions,
    docs,
    exchanges,
    health,
    history,
    live,
    logs,
    messages,
    metrics,
    operations,
    overview,
    parameters,
    permissions,
    policies,
    queues,
    session,
    streams,
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
    exchanges.router,
    queues.router,
    bindings.router,
    messages.router,
    vhosts.router,
    users.router,
    permissions.router,
    policies.router,
    parameters.router,
    definitions.router,
    logs.router,
    streams.router,
)
