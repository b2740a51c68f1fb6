"""Checks responses against their documented models: right types, no undocumented field."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import httpx
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from starlette.routing import Match
from typing_extensions import get_type_hints, is_typeddict

from leveret import ThreadedBroker

JSON = "application/json"


class Checker:
    """Checks responses of the application against its response models."""

    def __init__(self, app: FastAPI) -> None:
        self._routes = [route for route in app.routes if isinstance(route, APIRoute)]
        self._readers: dict[int, TypeAdapter[Any]] = {}

    @classmethod
    def of(cls, broker: ThreadedBroker) -> Checker:
        """The checker of a broker, created once."""
        app = app_of(broker)
        if not hasattr(app.state, "checker"):
            app.state.checker = cls(app)
        found: Checker = app.state.checker
        return found

    def __call__(self, answer: httpx.Response) -> None:
        """An httpx event hook: called with every response before the test gets it."""
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
        undocumented = sorted(_undocumented(route.response_model, value, ""))
        assert not undocumented, f"sent, but not documented: {undocumented}"

    def _route(self, method: str, path: str) -> APIRoute | None:
        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        for route in self._routes:
            if route.matches(scope)[0] is Match.FULL:
                return route
        return None


def app_of(broker: ThreadedBroker) -> FastAPI:
    """The FastAPI application of the broker."""
    running = broker.running
    assert running is not None and running._http_start is not None
    return running._http_start.result().app


def _undocumented(model: Any, value: Any, where: str) -> set[str]:
    """Names of fields in the value that the model does not have."""
    if get_origin(model) in (Union, types.UnionType):
        return min((_undocumented(one, value, where) for one in get_args(model)), key=len)
    if isinstance(value, list):
        inner = next(iter(get_args(model)), None)
        return {name for one in value for name in _undocumented(inner, one, where)}
    if isinstance(value, dict) and (fields := _fields_of(model)) is not None:
        found = {f"{where}{name}" for name in value.keys() - fields.keys()}
        for name in value.keys() & fields.keys():
            found |= _undocumented(fields[name], value[name], f"{where}{name}.")
        return found
    return {where or "(all of it)"} if _is_other_alternative(model, value) else set()


def _is_other_alternative(model: Any, value: Any) -> bool:
    """Whether the value cannot be of this alternative of a union."""
    is_row = _fields_of(model) is not None
    return (isinstance(value, dict) and get_origin(model) is list) or (
        is_row and not isinstance(value, dict)
    )


def _fields_of(model: Any) -> dict[str, Any] | None:
    """Types of the fields by name, if the model describes an object."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        known = model.model_fields.items()
        return {field.alias or name: field.annotation for name, field in known}
    row = get_origin(model) or model
    if not is_typeddict(row):
        return None
    arguments = dict(zip(getattr(row, "__parameters__", ()), get_args(model), strict=True))
    return {name: _filled(kind, arguments) for name, kind in get_type_hints(row).items()}


def _filled(kind: Any, arguments: dict[Any, Any]) -> Any:
    """`list[QueueRow]` for the `list[R]` of a generic row."""
    if get_origin(kind) is list and get_args(kind)[0] in arguments:
        return types.GenericAlias(list, (arguments[get_args(kind)[0]],))
    return kind
