"""How endpoints join the application.

Every endpoint runs on the event loop, also a plain `def`: the broker's objects belong to the loop's
thread, and a worker thread that walks them would see them change. What an endpoint returns is
written as JSON as it is; its annotation or `response_model` is for the documentation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from http_admin.answers import JsonAnswer
from leveret.broker.acting import Acting

_SAFE = {"GET", "HEAD"}
_REQUEST = "request_of_a_change"
_REQUESTS = (Request, "Request")


class Refusal(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="Short name of the kind of failure.")
    reason: str = Field(description="One sentence for people.")


_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "The request makes no sense."},
    401: {
        "model": Refusal,
        "description": "Nobody we know, or a wrong password.",
        "headers": {
            "WWW-Authenticate": {
                "description": "Not for a page's own requests: a browser would ask for a password.",
                "schema": {"type": "string", "const": 'Basic realm="Leveret"'},
            }
        },
    },
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
        _answering(route.endpoint, route.status_code or 200, not set(route.methods or ()) <= _SAFE),
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


def _answering(endpoint: Callable[..., Any], status: int, changes: bool) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def answer(**values: Any) -> Response:
        result = endpoint(**values)
        if inspect.isawaitable(result):
            result = await result
        return result if isinstance(result, Response) else _answer(result, status, values)

    return _naming(answer) if changes else answer


def _naming(answer: Callable[..., Coroutine[Any, Any, Response]]) -> Callable[..., Any]:
    """Events of what is changed name who asked for it."""

    known = inspect.signature(answer)
    own = [name for name, one in known.parameters.items() if one.annotation in _REQUESTS]

    @functools.wraps(answer)
    async def named(**values: Any) -> Response:
        request: Request = values[own[0]] if own else values.pop(_REQUEST)
        user = getattr(request.state, "user", None)
        if user is None:
            return await answer(**values)
        acting: Acting = request.app.state.broker.events.acting
        answered: Response = await acting.throughout(user.name, answer(**values))
        return answered

    asked = inspect.Parameter(_REQUEST, inspect.Parameter.KEYWORD_ONLY, annotation=Request)
    named.__signature__ = known.replace(  # type: ignore[attr-defined]
        parameters=[*known.parameters.values(), *([] if own else [asked])]
    )
    return named


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
