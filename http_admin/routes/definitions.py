"""Definitions: export and import of everything but messages."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from email.parser import BytesParser
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from leveret.broker import Broker
from leveret.broker.definitions.export import export_all, export_vhost
from leveret.broker.definitions.file import ParsedDefinitions, parse_definitions
from leveret.broker.runtime.slices import run_in_slices
from leveret.http_admin.auth import AUDIT_TARGET, AppBroker, PathVhost, require_tag
from leveret.http_admin.commit import until_committed
from leveret.http_admin.errors import bad_request
from leveret.http_admin.json_response import (
    FastJsonResponse,
    PartsResponse,
    dump_json,
    encode_document,
    load_json,
)
from leveret.http_admin.middleware.audit_text import comma_separated
from leveret.http_admin.middleware.concurrency import ResponseSlot
from leveret.http_admin.product import PRODUCT, product_version
from leveret.http_admin.responses import ERROR_RESPONSES
from leveret.http_admin.schemas.definitions import Definitions, ImportReport, VhostDefinitions
from leveret.model.compatibility import RABBITMQ_VERSION
from leveret.queues.port import Queue

log = logging.getLogger("leveret.http")
MAX_LOGGED_WARNINGS = 100
router = APIRouter(prefix="/api", tags=["definitions"], responses=ERROR_RESPONSES)
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}
_IMPORT: dict[str, Any] = {
    "openapi_extra": _BODY,
    "dependencies": [require_tag()],
    "response_model": ImportReport,
    "responses": {
        200: {"description": "Imported, with the parameter `warnings`."},
        204: {"description": "Imported, without it."},
    },
}
Warnings = Annotated[bool, Query(description="Return what was ignored or has no effect.")]


def _head(broker: Broker, document_format: str) -> dict[str, Any]:
    return {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": PRODUCT,
        "product_version": product_version(),
        "rabbitmq_definition_format": document_format,
        "original_cluster_name": broker.cluster_name,
    }


@router.get("/definitions", response_model=Definitions, dependencies=[require_tag(), ResponseSlot])
async def export_definitions(broker: AppBroker, download: str = "") -> FastJsonResponse:
    """Users, vhosts, permissions, policies, parameters, exchanges, queues and bindings.

    The section `leveret`, which RabbitMQ ignores, has what RabbitMQ could not use, such as users
    with an Argon2id password hash. With `download`, the response names a file for browsers.
    """
    document = {**_head(broker, "cluster"), **await run_in_slices(export_all(broker))}
    return await _document_response(document, download)


@router.get(
    "/definitions/{vhost:seg}",
    response_model=VhostDefinitions,
    dependencies=[require_tag("policymaker"), ResponseSlot],
)
async def export_vhost_definitions(
    vhost: PathVhost, broker: AppBroker, download: str = ""
) -> FastJsonResponse:
    """Policies, parameters, exchanges, queues and bindings of one vhost."""
    head = {**_head(broker, "single_virtual_host"), "original_vhost_name": vhost.name}
    document = head | await run_in_slices(export_vhost(broker, vhost))
    return await _document_response(document, download)


async def _document_response(document: dict[str, Any], download: str) -> PartsResponse:
    parts = await run_in_slices(encode_document(document))
    return PartsResponse(parts, headers=_file_name(download))


def _file_name(name: str) -> dict[str, str]:
    if not name:
        return {}
    safe = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    return {"Content-Disposition": f'attachment; filename="{safe}"'}


@router.post("/definitions", **_IMPORT)
@router.put("/definitions", **_IMPORT)
async def import_definitions(
    broker: AppBroker, request: Request, warnings: Warnings = False
) -> Response:
    """Import definitions of RabbitMQ or Leveret. If anything in them is wrong, nothing changes."""
    return _report(await _import(broker, request, None), warnings)


@router.post("/definitions/{vhost:seg}", **_IMPORT)
@router.put("/definitions/{vhost:seg}", **_IMPORT)
async def import_vhost_definitions(
    vhost: PathVhost, broker: AppBroker, request: Request, warnings: Warnings = False
) -> Response:
    """Import policies, parameters, exchanges, queues and bindings into one vhost."""
    return _report(await _import(broker, request, vhost.name), warnings)


def _report(warnings: list[str], is_requested: bool) -> Response:
    """Return the warnings if the client asked for them; RabbitMQ's clients expect no content."""
    if not is_requested:
        return Response(status_code=204)
    return FastJsonResponse(dump_json({"warnings": warnings}))


async def _import(broker: Broker, request: Request, vhost: str | None) -> list[str]:
    """Import the body; return warnings about what was ignored or has no effect."""
    try:
        document = await load_json(_uploaded_file(await request.body()))
    except orjson.JSONDecodeError as error:
        raise bad_request(f"failed to parse JSON: {error}") from error
    definitions = await run_in_slices(parse_definitions(document, vhost))
    names = await asyncio.to_thread(lambda: list(_changed_names(definitions)))
    setattr(request.state, AUDIT_TARGET, names)
    await broker.imports.run(definitions)
    await until_committed(broker, *_new_logs(broker, definitions))
    for warning in definitions.warnings[:MAX_LOGGED_WARNINGS]:
        log.warning("imported definitions: %s", warning)
    if more := definitions.warnings[MAX_LOGGED_WARNINGS:]:
        log.warning("imported definitions: %d more warnings", len(more))
    return definitions.warnings


def _new_logs(broker: Broker, definitions: ParsedDefinitions) -> list[Queue]:
    """Logs whose files must exist before the import is answered, unless deleted meanwhile."""
    logs = [(vhost, spec.name) for vhost, spec in definitions.queues if spec.kind == "stream"]
    vhosts = broker.vhosts
    return [vhosts[v].queues[name] for v, name in logs if v in vhosts and name in vhosts[v].queues]


def _changed_names(definitions: ParsedDefinitions) -> Iterator[str]:
    """The names that the audit log mentions, users before queues."""
    bindings = [binding for _, binding in definitions.bindings]
    parts = {
        "users": [user.name for user in definitions.users],
        "permissions": [permission.user for permission in definitions.permissions],
        "topic permissions": [p.user for p in definitions.topic_permissions],
        "vhosts": [name for name, _ in definitions.vhosts],
        "parameters": [f"{component}/{name}" for (_, component, name), _ in definitions.parameters],
        "policies": [policy.name for policy in definitions.policies],
        "queues": [spec.name for _, spec in definitions.queues],
        "exchanges": [spec.name for _, spec in definitions.exchanges],
        "bindings": [f"{binding.source} -> {binding.destination.name}" for binding in bindings],
    }
    separator = ""
    for part, names in parts.items():
        if names:
            yield from comma_separated(names, f"{separator}{part}: ")
            separator = "; "


def _uploaded_file(raw: bytes) -> bytes:
    """The JSON itself, or the field `file` of a form, whatever the content type."""
    if not raw.startswith(b"--"):
        return raw
    boundary = raw.partition(b"\r\n")[0][2:]
    head = b'Content-Type: multipart/form-data; boundary="' + boundary + b'"\r\n\r\n'
    form = BytesParser().parsebytes(head + raw)
    for part in form.walk():
        if part.get_param("name", header="content-disposition") == "file":
            content = part.get_payload(decode=True)
            return content if isinstance(content, bytes) else b""
    raise bad_request("the form has no field named file")
