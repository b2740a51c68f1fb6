"""Definitions: take everything but the messages out, and put it in somewhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.parser import BytesParser
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from http_admin.auth import TARGET, CurrentUser, Hub, require_tag, vhost_for
from http_admin.durable import until_durable
from http_admin.errors import bad_request
from http_admin.noting import in_a_row
from http_admin.product import PRODUCT, RABBITMQ_VERSION, product_version
from http_admin.shapes_definitions import Definitions, VhostDefinitions
from http_admin.turns import InTurn
from http_admin.views import Row
from leveret.broker import Broker
from leveret.broker.definition_file import Import, read
from leveret.broker.definitions import export_all, export_vhost
from leveret.broker.importing import apply, check

router = APIRouter(prefix="/api", tags=["definitions"])
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


def _head() -> Row:
    return {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": PRODUCT,
        "product_version": product_version(),
        "rabbitmq_definition_format": "cluster",
        "original_cluster_name": "",
    }


@router.get("/definitions", response_model=Definitions, dependencies=[require_tag(), InTurn])
def export_definitions(hub: Hub, response: Response, download: str = "") -> Row:
    """Users, vhosts, permissions, policies, parameters, exchanges, queues and bindings.

    What RabbitMQ could not use is in a section that it passes over, `leveret`: users whose
    password is kept as Argon2id among it. With `download`, the answer names a file for browsers
    to save.
    """
    _name_file(response, download)
    return {**_head(), "original_cluster_name": hub.cluster_name, **export_all(hub)}


@router.get(
    "/definitions/{vhost:seg}",
    response_model=VhostDefinitions,
    dependencies=[require_tag("policymaker"), InTurn],
)
def export_vhost_definitions(
    vhost: str, hub: Hub, user: CurrentUser, response: Response, download: str = ""
) -> Row:
    """Policies, parameters, exchanges, queues and bindings of one vhost."""
    held = vhost_for(hub, user, vhost)
    _name_file(response, download)
    head = _head() | {
        "rabbitmq_definition_format": "single_virtual_host",
        "original_vhost_name": held.name,
        "original_cluster_name": hub.cluster_name,
    }
    return {**head, **export_vhost(hub, held)}


def _name_file(response: Response, name: str) -> None:
    if name:
        safe = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
        response.headers["Content-Disposition"] = f'attachment; filename="{safe}"'


@router.post("/definitions", status_code=204, openapi_extra=_BODY, dependencies=[require_tag()])
@router.put("/definitions", status_code=204, openapi_extra=_BODY, dependencies=[require_tag()])
async def import_definitions(hub: Hub, request: Request) -> None:
    """Import a file of definitions, RabbitMQ's or ours; all of it, or nothing where it is wrong."""
    await _import(hub, request, None)


@router.post(
    "/definitions/{vhost:seg}",
    status_code=204,
    openapi_extra=_BODY,
    dependencies=[require_tag()],
)
@router.put(
    "/definitions/{vhost:seg}",
    status_code=204,
    openapi_extra=_BODY,
    dependencies=[require_tag()],
)
async def import_vhost_definitions(
    vhost: str, hub: Hub, user: CurrentUser, request: Request
) -> None:
    """Import policies, parameters, exchanges, queues and bindings into one vhost."""
    await _import(hub, request, vhost_for(hub, user, vhost).name)


async def _import(hub: Broker, request: Request, vhost: str | None) -> None:
    try:
        document = orjson.loads(_file_in(await request.body()))
    except orjson.JSONDecodeError as error:
        raise bad_request(f"failed to parse JSON: {error}") from error
    plan = read(document, vhost)
    setattr(request.state, TARGET, list(_names(plan)))
    check(hub, plan)
    apply(hub, plan)
    await until_durable(hub, *(hub.vhosts[where].queues[one.name] for where, one in plan.queues))


def _names(plan: Import) -> Iterator[str]:
    """What a file would change, as the audit log tells it: users before queues."""
    parts = {
        "users": [one.name for one in plan.users],
        "permissions": [one.user for one in plan.permissions],
        "topic permissions": [one.user for one in plan.topic_permissions],
        "vhosts": [name for name, _ in plan.vhosts],
        "parameters": [f"{component}/{name}" for (_, component, name), _ in plan.parameters],
        "policies": [one.name for one in plan.policies],
        "queues": [one.name for _, one in plan.queues],
        "exchanges": [one.name for _, one in plan.exchanges],
        "bindings": [f"{one.source} -> {one.destination.name}" for _, one in plan.bindings],
    }
    before = ""
    for part, names in parts.items():
        if names:
            yield from in_a_row(names, f"{before}{part}: ")
            before = "; "


def _file_in(raw: bytes) -> bytes:
    """The JSON itself, or the field `file` of a form, whatever the content type said."""
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
