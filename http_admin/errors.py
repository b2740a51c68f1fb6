"""Errors as HTTP responses: a status for each AMQP reply code, and RabbitMQ's error JSON."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from leveret.http_admin.json_response import FastJsonResponse, dump_json
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
REFUSAL_REASON = "refusal_reason"
"""Attribute of a request's state: the reason that its error response gives, for the log."""
_PAGING = (("query", "page"), ("query", "page_size"))
_NOT_AN_OBJECT = ("missing", "dict_type", "model_type", "model_attributes_type")
_OUT_OF_RANGE = ("greater_than_equal", "less_than_equal")
_MAX_REPORTED = 20


class ApiError(Exception):
    """A refused request; `name` where RabbitMQ's error name differs from that of the status."""

    def __init__(
        self, status: int, reason: str, headers: dict[str, str] | None = None, name: str = ""
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers
        self.name = name


def not_found(reason: str = "Not Found") -> ApiError:
    return ApiError(404, reason)


def bad_request(reason: str) -> ApiError:
    return ApiError(400, reason)


def error_response(
    status: int, reason: str, headers: dict[str, str] | None = None, name: str = ""
) -> FastJsonResponse:
    content = {"error": name or _NAMES.get(status, "error"), "reason": reason}
    return FastJsonResponse(dump_json(content), status, headers)


def _refuse(
    request: Request,
    status: int,
    reason: str,
    headers: dict[str, str] | None = None,
    name: str = "",
) -> FastJsonResponse:
    setattr(request.state, REFUSAL_REASON, reason)
    return error_response(status, reason, headers, name)


def install(app: FastAPI) -> None:
    """Respond to every kind of exception with the same JSON."""

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> FastJsonResponse:
        return _refuse(request, error.status, error.reason, error.headers, error.name)

    @app.exception_handler(BrokerError)
    async def on_broker_error(request: Request, error: BrokerError) -> FastJsonResponse:
        return _refuse(request, _STATUS.get(error.code, 400), error.explanation)

    @app.exception_handler(RequestValidationError)
    async def on_invalid_request(
        request: Request, error: RequestValidationError
    ) -> FastJsonResponse:
        faults = error.errors()
        is_paging = any(
            fault["loc"] in _PAGING and fault["type"] in _OUT_OF_RANGE for fault in faults
        )
        name = "invalid_pagination_parameters" if is_paging else ""
        reason = "; ".join(map(_sentence, faults[:_MAX_REPORTED]))
        return _refuse(request, 400, reason, name=name)

    @app.exception_handler(HTTPException)
    async def on_http_exception(request: Request, error: HTTPException) -> FastJsonResponse:
        headers = dict(error.headers) if error.headers else None
        if error.status_code == 405:
            headers = {"Allow": ", ".join(_allowed_methods(request))}
        return _refuse(request, error.status_code, str(error.detail), headers)


def _allowed_methods(request: Request) -> list[str]:
    """Methods of all routes with this path; starlette names those of the first one only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in matching for method in route.methods or ()})


def _sentence(fault: dict[str, Any]) -> str:
    if fault["type"] == "json_invalid":
        return f"the body is not valid JSON: {fault['ctx']['error']} (at {fault['loc'][-1]})"
    if fault["loc"] == ("body",) and fault["type"] in _NOT_AN_OBJECT:
        return "the body must be a JSON object"
    place = ".".join(str(part) for part in fault["loc"] if part != "body")
    return f"{place or 'body'}: {fault['msg']}"
