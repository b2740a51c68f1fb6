"""The OpenAPI document: FastAPI's, corrected to what this application does."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

Document = dict[str, Any]
DESCRIPTION = (
    "RabbitMQ's management API and Leveret's additions to it. Names in paths are percent-encoded: "
    "the virtual host `/` is `%2F`. Lists take `page`, `page_size`, `name`, `use_regex`, `sort`, "
    "`sort_reverse` and `columns`; the response is a page if `page` is given, else an array."
)
OPEN_PATHS = ("/api/login", "/metrics")
LEVERET_ONLY = "x-leveret"
"""Marks operations that RabbitMQ does not have."""
_LEVERET_PATHS = (
    "/api/alarms", "/api/history", "/api/logout", "/api/logs", "/api/lost-data", "/api/route",
    "/api/settings", "/api/shutdown", "/api/trace",
)  # fmt: skip


def describe(app: FastAPI) -> Document:
    """The document, which is built on the first call."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes
        )
        _add_security_schemes(document)
        for path, operations in document["paths"].items():
            for operation in operations.values():
                # Malformed requests get 400 here, not FastAPI's 422.
                operation["responses"].pop("422", None)
                if _is_leveret_only(path):
                    operation[LEVERET_ONLY] = True
                if path in OPEN_PATHS:
                    operation["security"] = []
        for unused in ("HTTPValidationError", "ValidationError"):
            document.get("components", {}).get("schemas", {}).pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema


def _is_leveret_only(path: str) -> bool:
    parts = path.split("/")
    is_under = "/".join(parts[:3]) in _LEVERET_PATHS
    return is_under or path == "/api/stream" or "browse" in parts or "scheduled" in parts


def _add_security_schemes(document: Document) -> None:
    document.setdefault("components", {})["securitySchemes"] = {
        "basic": {"type": "http", "scheme": "basic"},
        "session": {"type": "apiKey", "in": "cookie", "name": "leveret_session"},
    }
    document["security"] = [{"basic": []}, {"session": []}]
