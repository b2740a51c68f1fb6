"""Responses that many routes have in common, for their decorators and for the documentation."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response


class ErrorBody(BaseModel):
    """Why a request failed."""

    error: str = Field(description="A short name for the kind of failure.")
    reason: str = Field(description="A sentence for people.")


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The request is malformed or contradicts itself."},
    401: {
        "model": ErrorBody,
        "description": "Credentials are missing or wrong.",
        "headers": {
            "WWW-Authenticate": {
                "description": "Not sent to scripts of a page: a browser would open a dialog.",
                "schema": {"type": "string", "pattern": '^Basic realm="[^"]+"$'},
            }
        },
    },
    403: {"model": ErrorBody, "description": "The user lacks a tag or a permission."},
    404: {"model": ErrorBody, "description": "The object does not exist."},
}
"""Errors that every route of the API may respond with."""

NO_CONTENT: dict[str, Any] = {
    "status_code": 204,
    "response_class": Response,
    "response_model": None,  # FastAPI before 0.119 would take the annotation `None` for a model
}
"""Keyword arguments of a route that responds without a body."""

CREATED: dict[str, Any] = {
    "status_code": 201,
    "response_class": Response,
    "responses": {
        201: {"description": "Created."},
        204: {"description": "It existed already, and now is as requested."},
    },
}
"""The same for a PUT, which sets the status 204 if the object existed."""
