"""The FastAPI application: routers, the security headers of every answer, the web UI."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.responses import ORJSONResponse

from http_admin import errors
from http_admin.auth import Doorkeeper
from leveret.broker import Broker

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
LARGEST_BODY = 1024 * 1024
LARGEST_IMPORT = 20 * 1024 * 1024


def create_app(broker: Broker, request_stop: Callable[[], None]) -> FastAPI:
    app = FastAPI(
        title="Leveret management API",
        version="1",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        default_response_class=ORJSONResponse,
    )
    app.state.broker = broker
    app.state.doorkeeper = Doorkeeper(broker)
    app.state.request_stop = request_stop
    errors.install(app)
    return app
