"""The API's own description, for programs and for people."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from http_admin.answers import JsonAnswer
from http_admin.auth import CurrentUser
from http_admin.docs_page import render
from http_admin.openapi import describe

router = APIRouter(prefix="/api", include_in_schema=False)


@router.get("/openapi.json")
def openapi(request: Request, user: CurrentUser) -> JsonAnswer:
    """The description in OpenAPI's form."""
    return JsonAnswer(describe(request.app))


@router.get("/docs")
@router.get("/index.html")
def docs(request: Request, user: CurrentUser) -> Response:
    """The description as a page."""
    return Response(render(describe(request.app)), media_type="text/html")
