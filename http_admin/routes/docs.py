"""The API's own documentation: as OpenAPI for programs, as a page for people.

The page is plain HTML without a script, so it works under the Content-Security-Policy.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from leveret.http_admin.auth import CurrentUser
from leveret.http_admin.json_response import FastJsonResponse, dump_json
from leveret.http_admin.openapi import LEVERET_ONLY, describe
from leveret.http_admin.static import PAGES

if TYPE_CHECKING:
    from jinja2 import Template

router = APIRouter(prefix="/api", include_in_schema=False)
Schema = dict[str, Any]


@router.get("/openapi.json")
async def openapi(request: Request, user: CurrentUser) -> FastJsonResponse:
    """The OpenAPI document."""
    return FastJsonResponse(dump_json(describe(request.app)))


@router.get("/docs")
@router.get("/index.html")
async def docs(request: Request, user: CurrentUser) -> Response:
    """The same as a page."""
    return Response(render(describe(request.app)), media_type="text/html")


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader  # only for this page: not at start-up

    loader = FileSystemLoader(PAGES)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("api-docs.html")


def render(document: Schema) -> str:
    schemas = document.get("components", {}).get("schemas", {})
    groups: dict[str, list[Schema]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups[tag].append(_operation(method.upper(), path, operation, schemas))
    return _template().render(info=document["info"], groups=sorted(groups.items()))


def _operation(method: str, path: str, operation: Schema, schemas: Schema) -> Schema:
    content = (operation.get("requestBody") or {}).get("content", {})
    description = operation.get("description") or operation.get("summary") or ""
    return {
        "method": method,
        "path": path,
        "description": description,
        "summary": description.partition("\n")[0],
        "is_leveret_only": bool(operation.get(LEVERET_ONLY)),
        "parameters": [
            {**parameter, "kind": kind_of(parameter.get("schema", {}))}
            for parameter in operation.get("parameters") or []
        ],
        "body": _fields(_first_schema(content), schemas) if content else None,
        "responses": [
            {
                "status": status,
                "description": response["description"],
                "body": _response_fields(status, response, schemas),
            }
            for status, response in operation["responses"].items()
        ],
    }


def _response_fields(status: str, response: Schema, schemas: Schema) -> Schema | None:
    schema = _first_schema(response.get("content") or {})
    return _fields(schema, schemas) if status.startswith("2") and schema else None


def _first_schema(content: Schema) -> Schema:
    first: Schema = next(iter(content.values()), {})
    schema: Schema = first.get("schema", {})
    return schema


def _fields(schema: Schema, schemas: Schema) -> Schema:
    """The fields of an object, or of the objects in an array; a type if it has none."""
    item: Schema = schema.get("items", schema)
    resolved: Schema = schemas.get(str(item.get("$ref", "")).rpartition("/")[2], item)
    required = set(resolved.get("required") or ())
    return {
        "kind": kind_of(schema),
        "is_array": "items" in schema,
        "rows": [
            {
                "name": name,
                "is_required": name in required,
                "kind": kind_of(field),
                "description": field.get("description", ""),
            }
            for name, field in (resolved.get("properties") or {}).items()
        ],
    }


def kind_of(schema: Schema) -> str:
    """A type in words, such as `array of QueueRow`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(kind_of, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"array of {kind_of(schema.get('items', {}))}"
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    return str(schema.get("type", "any"))
