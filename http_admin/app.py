"""The FastAPI application: routers behind the guard, the web UI last."""

from __future__ import annotations

from fastapi import FastAPI

from http_admin import errors, static
from http_admin.answers import JsonAnswer
from http_admin.auth import Doorkeeper
from http_admin.guard import Guard
from http_admin.pace import OneByOne
from http_admin.paths import RawPath
from http_admin.product import product_version
from http_admin.registration import register
from http_admin.routes import ROUTERS
from http_admin.surroundings import Surroundings
from http_admin.totals import TotalsTaker
from http_admin.turns import Turns
from leveret.broker import Broker


def create_app(broker: Broker, surroundings: Surroundings | None = None) -> FastAPI:
    app = FastAPI(
        title="Leveret management API",
        version=product_version(),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        default_response_class=JsonAnswer,
        strict_content_type=False,
    )
    app.state.broker = broker
    app.state.doorkeeper = Doorkeeper(broker)
    app.state.totals = TotalsTaker(broker)
    app.state.turns = Turns()
    app.state.surroundings = surroundings or Surroundings()
    errors.install(app)
    for router in ROUTERS:
        register(app, router)
    register(app, static.router)
    app.add_middleware(RawPath)
    app.add_middleware(Guard, broker=broker)
    app.add_middleware(OneByOne)
    return app
