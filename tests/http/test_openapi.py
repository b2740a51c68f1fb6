"""The OpenAPI document is complete: all responses and all their fields have a type.

That responses match it is checked for all requests of the other tests (`response_checker.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

# Values chosen by clients: any table, any JSON.
FREE = {
    "arguments", "headers", "client_properties", "definition", "effective_policy_definition",
    "value",
}  # fmt: skip
# RabbitMQ's lists that are always empty in Leveret.
ALWAYS_EMPTY = {"ssl_opts", "cluster_links", "socket_opts"}


def _successes(described: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if status.startswith("2"):
                    yield f"{method.upper()} {path}", status, response


def _is_loose(schema: dict[str, Any]) -> bool:
    """Whether the schema accepts any value."""
    inner = [schema, schema.get("items", {}), *schema.get("anyOf", [])]
    if any(part.get("additionalProperties") is True for part in inner):
        return "properties" not in schema
    said = {"type", "$ref", "anyOf", "allOf", "const", "enum"}
    return not said & schema.keys() or (
        schema.get("type") == "array" and not {"items", "prefixItems"} & schema.keys()
    )


def test_every_response_has_a_type(api: httpx.Client) -> None:
    described = api.get("/api/openapi.json").json()
    loose = [
        where
        for where, status, response in _successes(described)
        for kind, content in response.get("content", {}).items()
        if kind == "application/json" and _is_loose(content.get("schema", {}))
    ]
    assert not loose


def test_every_field_has_a_type(api: httpx.Client) -> None:
    schemas = api.get("/api/openapi.json").json()["components"]["schemas"]
    loose = {
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, kind in schema.get("properties", {}).items()
        if field not in FREE | ALWAYS_EMPTY and _is_loose(kind)
    }
    # Properties in requests are checked by name, not by this schema.
    assert loose == {"PublishBody.properties", "RecordBody.properties"}


def test_every_operation_is_described(api: httpx.Client) -> None:
    described = api.get("/api/openapi.json").json()
    operations = [one for path in described["paths"].values() for one in path.values()]
    assert all(one["description"].strip() and one["tags"] for one in operations)
    for where, status, response in _successes(described):
        assert response["description"], where
        method, path = where.split()
        if (method, status) == ("PUT", "201"):
            assert "204" in described["paths"][path]["put"]["responses"], where
