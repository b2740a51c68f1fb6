"""How endpoints join the application.

Every endpoint runs on the event loop, also a plain `def`: the broker's objects belong to the loop's
thread, and a worker thread that walks them would see them change. What an endpoint returns is
written as JSON as it is; its annotation or `response_model` is for the documentation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.responses import Response

from http_admin.answers import JsonAnswer


class Refusal(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="Short name of the kind of failure.")
    reason: str = Field(description="One sentence for people.")


_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "The request makes no sense."},
    401: {"model": Refusal, "description": "Nobody we know, or a wrong password."},
    403: {"model": Refusal, "description": "Known, but not allowed to."},
    404: {"model": Refusal, "description": "There is no such thing."},
}


def register(app: FastAPI, router: APIRouter) -> None:
    for route in router.routes:
        if isinstance(route, APIRoute):
            _register(app, route)


def _register(app: FastAPI, route: APIRoute) -> None:
    app.router.add_api_route(
        route.path,
        _answering(route.endpoint, route.status_code or 200),
        methods=sorted(route.methods or ()),
        response_model=route.response_model,
        response_class=route.response_class,
        status_code=route.status_code,
        tags=route.tags,
        name=route.name,
        summary=route.summary,
        description=route.description,
        dependencies=route.dependencies,
        include_in_schema=route.include_in_schema,
        responses={**_REFUSALS, **route.responses} if route.include_in_schema else None,
        openapi_extra=route.openapi_extra,
    )


def _answering(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def answer(**values: Any) -> Response:
        result = endpoint(**values)
        if inspect.isawaitable(result):
            result = await result
        return result if isinstance(result, Response) else _answer(result, status, values)

    return answer


def _answer(result: Any, status: int, values: dict[str, Any]) -> Response:
    """Status and headers may have been set on the response an endpoint was handed."""
    given = next((value for value in values.values() if isinstance(value, Response)), None)
    chosen = (given.status_code if given is not None else None) or status
    answer = Response(status_code=chosen) if result is None else JsonAnswer(result, chosen)
    if given is not None:
        answer.headers.update(
            {name: value for name, value in given.headers.items() if name != "content-length"}
        )
    return answer
