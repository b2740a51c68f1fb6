"""The FastAPI application: all routes behind the security middleware, the web UI last."""

from __future__ import annotations

from fastapi import FastAPI

from leveret.broker import Broker
from leveret.http_admin import errors, static
from leveret.http_admin.auth import SessionStore
from leveret.http_admin.context import AppContext
from leveret.http_admin.middleware.concurrency import RequestPacing, SlotsByUser
from leveret.http_admin.middleware.security import SecurityMiddleware
from leveret.http_admin.product import product_version
from leveret.http_admin.routes import ROUTERS
from leveret.http_admin.rows.totals import TotalsCache


def create_app(broker: Broker, context: AppContext | None = None) -> FastAPI:
    app = FastAPI(
        title="Leveret management API",
        version=product_version(),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        strict_content_type=False,
    )
    app.state.broker = broker
    app.state.sessions = SessionStore(broker)
    app.state.totals = TotalsCache(broker)
    app.state.response_slots = SlotsByUser()
    app.state.context = context or AppContext()
    errors.install(app)
    for router in (*ROUTERS, static.router):
        # One flat list of routes: `include_router` would match each router on its own.
        app.router.routes.extend(router.routes)
    app.add_middleware(SecurityMiddleware, broker=broker)
    app.add_middleware(RequestPacing)
    return app
