"""The API's description: FastAPI's, corrected to what this application really does."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

Description = dict[str, Any]
ABOUT = (
    "RabbitMQ's management API, and what Leveret adds to it. Names in paths are percent-encoded: "
    "the virtual host `/` is `%2F`. Lists take `page`, `page_size`, `name`, `use_regex`, `sort`, "
    "`sort_reverse` and `columns`; with `page` they answer with a page, else with an array."
)
OPEN_PATHS = ("/api/login", "/metrics")
OWN = "x-leveret"
"""Marks operations that RabbitMQ does not have."""
_OWN_PATHS = (
    "/api/alarms", "/api/history", "/api/logout", "/api/logs", "/api/route", "/api/settings",
    "/api/shutdown", "/api/trace",
)  # fmt: skip


def describe(app: FastAPI) -> Description:
    """Made once, when first asked for."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=ABOUT, routes=app.routes
        )
        _say_how_to_log_in(made)
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                # Malformed requests are answered with 400 here, not with FastAPI's 422.
                operation["responses"].pop("422", None)
                _say_what_changes_answer(method, operation["responses"])
                if _is_own(path):
                    operation[OWN] = True
                if path in OPEN_PATHS:
                    operation["security"] = []
        for unused in ("HTTPValidationError", "ValidationError"):
            made.get("components", {}).get("schemas", {}).pop(unused, None)
        app.openapi_schema = made
    return app.openapi_schema


def _is_own(path: str) -> bool:
    parts = path.split("/")
    is_under = "/".join(parts[:3]) in _OWN_PATHS
    return is_under or path == "/api/stream" or "browse" in parts or "scheduled" in parts


def _say_what_changes_answer(method: str, responses: Description) -> None:
    """What makes something answers without a body, and otherwise if it was there already."""
    made = responses.get("201")
    if made is not None and made.get("content", {}).get("application/json", {}).get("schema") == {}:
        responses["201"] = {"description": "It is made."}
        if method == "put":
            responses.setdefault("204", {"description": "It was there, and is as asked for."})


def _say_how_to_log_in(made: Description) -> None:
    made.setdefault("components", {})["securitySchemes"] = {
        "basic": {"type": "http", "scheme": "basic"},
        "session": {"type": "apiKey", "in": "cookie", "name": "leveret_session"},
    }
    made["security"] = [{"basic": []}, {"session": []}]
