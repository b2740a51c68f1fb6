"""The API's description as one page of HTML: no script, nothing from elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any

OWN = "x-leveret"
Operation = tuple[str, str, dict[str, Any]]


def render(described: dict[str, Any]) -> str:
    groups: dict[str, list[Operation]] = defaultdict(list)
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups[tag].append((method.upper(), path, operation))
    schemas = described.get("components", {}).get("schemas", {})
    links = " ".join(f'<a href="#{_id(tag)}">{escape(tag)}</a>' for tag in sorted(groups))
    parts = [_HEAD, f"<h1>{escape(described['info']['title'])}</h1>"]
    parts.append(f"<p>{escape(described['info']['description'])}</p>")
    parts.append('<p><a href="/api/openapi.json">openapi.json</a></p>')
    parts.append(f'<nav aria-label="Groups">{links}</nav>')
    for tag in sorted(groups):
        parts.append(f'<section><h2 id="{_id(tag)}">{escape(tag)}</h2>')
        parts += [_operation(*operation, schemas) for operation in groups[tag]]
        parts.append("</section>")
    parts.append("</main></body></html>")
    return "\n".join(parts)


_HEAD = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8" />'
    '<meta name="viewport" content="width=device-width, initial-scale=1" />'
    '<title>Leveret HTTP API</title><link rel="icon" href="data:," />'
    '<link rel="stylesheet" href="/style.css" />'
    "</head><body><main>"
)


def _id(tag: str) -> str:
    return escape(f"tag-{tag}", quote=True)


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    title = f'<span class="method">{method}</span> <code>{escape(path)}</code>'
    about = escape(operation.get("description") or operation.get("summary") or "")
    body = operation.get("requestBody")
    inner = [f"<p>{about}</p>", _parameters(operation.get("parameters") or [])]
    if body:
        content = next(iter(body["content"].values()))
        inner.append("<h3>Body</h3>" + _fields(content.get("schema", {}), schemas))
    inner.append(_answers(operation["responses"], schemas))
    head, _, _ = about.partition("\n")
    own = ' <span class="method">Leveret</span>' if operation.get(OWN) else ""
    return (
        f'<details><summary>{title} <span class="muted">{head}</span>{own}</summary>'
        f"<div>{''.join(inner)}</div></details>"
    )


def _parameters(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = [
        (
            f"<code>{escape(one['name'])}</code>",
            escape(one["in"] + (", required" if one.get("required") else "")),
            escape(_kind(one.get("schema", {}))),
            escape(one.get("description", "")),
        )
        for one in parameters
    ]
    return "<h3>Parameters</h3>" + _table(rows)


def _answers(answers: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = ["<h3>Answers</h3>"]
    for status, answer in answers.items():
        contents: dict[str, dict[str, Any]] = answer.get("content") or {}
        content = next(iter(contents.values()), {})
        parts.append(f"<p><strong>{escape(status)}</strong> {escape(answer['description'])}</p>")
        if status.startswith("2") and content.get("schema"):
            parts.append(_fields(content["schema"], schemas))
    return "".join(parts)


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    shown = schema.get("items", schema)
    name = str(shown.get("$ref", "")).rpartition("/")[2]
    found = schemas.get(name, shown)
    properties = found.get("properties")
    if not properties:
        return f'<p class="muted">{escape(_kind(schema))}</p>'
    needed = set(found.get("required") or ())
    rows = [
        (
            f"<code>{escape(field)}</code>",
            "required" if field in needed else "",
            escape(_kind(about)),
            escape(about.get("description", "")),
        )
        for field, about in properties.items()
    ]
    each = '<p class="muted">Array of:</p>' if "items" in schema else ""
    return each + _table(rows)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return " | ".join(str(one) for one in schema["enum"])
    return str(schema.get("type", "any"))
