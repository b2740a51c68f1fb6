"""Refusals as HTTP: one map from reply codes to statuses, and RabbitMQ's error JSON."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from http_admin.answers import JsonAnswer
from leveret.model.errors import BrokerError, ReplyCode

_STATUS = {
    ReplyCode.NOT_FOUND: 404,
    ReplyCode.ACCESS_REFUSED: 403,
    ReplyCode.INTERNAL_ERROR: 500,
}
_NAMES = {
    400: "bad_request",
    401: "not_authorized",
    403: "access_refused",
    404: "Object Not Found",
    405: "method_not_allowed",
    413: "payload_too_large",
    429: "too_many_requests",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
}


WHY = "why"
"""Where a request's state has why it was refused, for the log: as its answer says it."""
_PAGING = (("query", "page"), ("query", "page_size"))
_NO_OBJECT = ("missing", "dict_type", "model_type", "model_attributes_type")
_TOLD = 20
_OFF_LIMITS = ("greater_than_equal", "less_than_equal")


class ApiError(Exception):
    """A refused request; `name` where RabbitMQ calls it otherwise than others of its status."""

    def __init__(
        self, status: int, reason: str, headers: dict[str, str] | None = None, name: str = ""
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers
        self.name = name


def not_found(what: str = "Not Found") -> ApiError:
    return ApiError(404, what)


def bad_request(reason: str) -> ApiError:
    return ApiError(400, reason)


def error_response(
    status: int, reason: str, headers: dict[str, str] | None = None, name: str = ""
) -> JsonAnswer:
    content = {"error": name or _NAMES.get(status, "error"), "reason": reason}
    return JsonAnswer(content, status, headers)


def _refusal(
    request: Request,
    status: int,
    reason: str,
    headers: dict[str, str] | None = None,
    name: str = "",
) -> JsonAnswer:
    setattr(request.state, WHY, reason)
    return error_response(status, reason, headers, name)


def install(app: FastAPI) -> None:
    """Every way a request can fail ends in the same JSON."""

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> JsonAnswer:
        return _refusal(request, error.status, error.reason, error.headers, error.name)

    @app.exception_handler(BrokerError)
    async def refused_by_broker(request: Request, error: BrokerError) -> JsonAnswer:
        return _refusal(request, _STATUS.get(error.code, 400), error.explanation)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JsonAnswer:
        wrong = error.errors()
        is_off = any(one["loc"] in _PAGING and one["type"] in _OFF_LIMITS for one in wrong)
        name = "invalid_pagination_parameters" if is_off else ""
        return _refusal(request, 400, "; ".join(map(_sentence, wrong[:_TOLD])), name=name)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> JsonAnswer:
        headers = dict(error.headers) if error.headers else None
        if error.status_code == 405:
            headers = {"Allow": ", ".join(_methods_at(request))}
        return _refusal(request, error.status_code, str(error.detail), headers)


def _methods_at(request: Request) -> list[str]:
    """Each method of a path is a route of its own, and the first of them speaks for itself only."""
    routes = [one for one in request.app.routes if isinstance(one, Route)]
    here = [one for one in routes if one.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for one in here for method in one.methods or ()})


def _sentence(error: dict[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return f"the body is not valid JSON: {error['ctx']['error']} (at {error['loc'][-1]})"
    if error["loc"] == ("body",) and error["type"] in _NO_OBJECT:
        return "the body must be a JSON object"
    place = ".".join(str(part) for part in error["loc"] if part != "body")
    return f"{place or 'body'}: {error['msg']}"
