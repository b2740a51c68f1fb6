"""Whether an answer is what the documentation says: of the right types, with no field it hides."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import httpx
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from starlette.routing import Match

from leveret import ThreadedBroker

JSON = "application/json"


class Checker:
    """Holds answers of the application against its response models."""

    def __init__(self, app: FastAPI) -> None:
        self._routes = [route for route in app.routes if isinstance(route, APIRoute)]
        self._readers: dict[int, TypeAdapter[Any]] = {}

    @classmethod
    def of(cls, broker: ThreadedBroker) -> Checker:
        """Made once for each broker."""
        app = app_of(broker)
        if not hasattr(app.state, "checker"):
            app.state.checker = cls(app)
        found: Checker = app.state.checker
        return found

    def __call__(self, answer: httpx.Response) -> None:
        """For httpx: called with every answer before the test sees it."""
        request = answer.request
        kind = answer.headers.get("content-type", "")
        if not kind.startswith(JSON) or answer.status_code >= 300:
            return
        answer.read()
        path = request.url.raw_path.decode().partition("?")[0]
        route = self._route(request.method, path)
        if route is not None and route.include_in_schema:
            assert route.response_model is not None, f"{request.method} {path} has no model"
            self._check(route, answer.json(), "columns" in request.url.params)

    def _check(self, route: APIRoute, value: Any, cut: bool) -> None:
        if not cut:  # a row of some columns only lacks what the model demands
            key = id(route)
            if key not in self._readers:
                self._readers[key] = TypeAdapter(route.response_model)
            self._readers[key].validate_python(value)
        hidden = sorted(_hidden(route.response_model, value, ""))
        assert not hidden, f"sent, but not described: {hidden}"

    def _route(self, method: str, path: str) -> APIRoute | None:
        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        for route in self._routes:
            if route.matches(scope)[0] is Match.FULL:
                return route
        return None


def app_of(broker: ThreadedBroker) -> FastAPI:
    """The FastAPI application that answers."""
    running = broker.running
    assert running is not None and running._http_start is not None
    return running._http_start.result().app


def _hidden(model: Any, value: Any, where: str) -> set[str]:
    """Names of fields in the value that the model does not have."""
    if get_origin(model) in (Union, types.UnionType):
        return min((_hidden(one, value, where) for one in get_args(model)), key=len)
    if isinstance(value, list):
        inner = next(iter(get_args(model)), None)
        return {name for one in value for name in _hidden(inner, one, where)}
    if isinstance(value, dict) and isinstance(model, type) and issubclass(model, BaseModel):
        known = {field.alias or name: field for name, field in model.model_fields.items()}
        found = {f"{where}{name}" for name in value.keys() - known.keys()}
        for name in value.keys() & known.keys():
            found |= _hidden(known[name].annotation, value[name], f"{where}{name}.")
        return found
    return {where or "(all of it)"} if _is_other(model, value) else set()


def _is_other(model: Any, value: Any) -> bool:
    """Whether an alternative of a union is plainly not meant."""
    is_row = isinstance(model, type) and issubclass(model, BaseModel)
    return (isinstance(value, dict) and get_origin(model) is list) or (
        is_row and not isinstance(value, dict)
    )
