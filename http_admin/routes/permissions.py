"""Permissions on names, and topic permissions on routing keys."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from leveret.broker import Broker
from leveret.broker.definitions.export import permission_row, topic_permission_row
from leveret.http_admin.auth import AppBroker, require_tag
from leveret.http_admin.commit import until_committed
from leveret.http_admin.errors import bad_request, not_found
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ListParams, list_rows
from leveret.http_admin.responses import CREATED, ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.schemas.access import PermissionRow, TopicPermissionRow
from leveret.http_admin.schemas.common import listing
from leveret.model.definitions import PermissionDefinition, TopicPermissionDefinition

router = APIRouter(
    prefix="/api", tags=["permissions"], dependencies=[require_tag()], responses=ERROR_RESPONSES
)
Permissions: Any = listing(PermissionRow)
TopicPermissions: Any = listing(TopicPermissionRow)


class PermissionBody(BaseModel):
    configure: str = Field(description="Pattern of names that the user may declare and delete.")
    write: str = Field(description="Pattern of names that the user may publish and bind to.")
    read: str = Field(description="Pattern of names that the user may consume and bind from.")


class TopicPermissionBody(BaseModel):
    exchange: str
    write: str
    read: str


def _require_user_and_vhost(broker: Broker, user: str, vhost: str) -> None:
    if user not in broker.users.by_name or vhost not in broker.vhosts:
        raise bad_request("vhost_or_user_not_found")


def _require_vhost(broker: Broker, vhost: str) -> None:
    if vhost not in broker.vhosts:
        raise not_found()


def _require_user(broker: Broker, user: str) -> None:
    if user not in broker.users.by_name:
        raise not_found()


# Permissions -------------------------------------------------------------------------------------


@router.get("/permissions", response_model=Permissions)
async def list_permissions(broker: AppBroker, query: ListParams) -> FastJsonResponse:
    """All permissions."""
    permissions = broker.users.permissions.values()
    return await list_rows(permissions, query, permission_row, lambda p: p.user)


@router.get("/vhosts/{vhost:seg}/permissions", response_model=Permissions)
async def vhost_permissions(vhost: str, broker: AppBroker, query: ListParams) -> FastJsonResponse:
    """Permissions in one virtual host."""
    _require_vhost(broker, vhost)
    permissions = [p for p in broker.users.permissions.values() if p.vhost == vhost]
    return await list_rows(permissions, query, permission_row, lambda p: p.user)


@router.get("/users/{user:seg}/permissions", response_model=Permissions)
async def user_permissions(user: str, broker: AppBroker, query: ListParams) -> FastJsonResponse:
    """Permissions of one user."""
    _require_user(broker, user)
    permissions = [p for p in broker.users.permissions.values() if p.user == user]
    return await list_rows(permissions, query, permission_row, lambda p: p.vhost)


@router.get("/permissions/{vhost:seg}/{user:seg}", response_model=PermissionRow)
async def get_permission(vhost: str, user: str, broker: AppBroker) -> dict[str, Any]:
    """The permission of one user in one virtual host."""
    permission = broker.users.permissions.get((user, vhost))
    if permission is None:
        raise not_found()
    return permission_row(permission)


@router.put("/permissions/{vhost:seg}/{user:seg}", **CREATED)
async def put_permission(
    vhost: str, user: str, broker: AppBroker, response: Response, body: PermissionBody
) -> None:
    """Let a user access a virtual host, with these permissions."""
    _require_user_and_vhost(broker, user, vhost)
    existed = broker.users.can_access_vhost(user, vhost)
    broker.users.set_permission(
        PermissionDefinition(user, vhost, body.configure, body.write, body.read)
    )
    await until_committed(broker)
    response.status_code = 204 if existed else 201


@router.delete("/permissions/{vhost:seg}/{user:seg}", **NO_CONTENT)
async def delete_permission(vhost: str, user: str, broker: AppBroker) -> None:
    """Revoke a user's access to a virtual host."""
    if not broker.users.can_access_vhost(user, vhost):
        raise not_found()
    broker.users.clear_permission(user, vhost)
    await until_committed(broker)


# Topic permissions -------------------------------------------------------------------------------


def _topic_permissions(
    broker: Broker, user: str | None = None, vhost: str | None = None
) -> list[TopicPermissionDefinition]:
    return [
        permission
        for permission in broker.users.topic_permissions.values()
        if user in (None, permission.user) and vhost in (None, permission.vhost)
    ]


@router.get("/topic-permissions", response_model=TopicPermissions)
async def list_topic_permissions(broker: AppBroker, query: ListParams) -> FastJsonResponse:
    """All topic permissions."""
    permissions = _topic_permissions(broker)
    return await list_rows(permissions, query, topic_permission_row, lambda p: p.user)


@router.get("/vhosts/{vhost:seg}/topic-permissions", response_model=TopicPermissions)
async def vhost_topic_permissions(
    vhost: str, broker: AppBroker, query: ListParams
) -> FastJsonResponse:
    """Topic permissions in one virtual host."""
    _require_vhost(broker, vhost)
    permissions = _topic_permissions(broker, vhost=vhost)
    return await list_rows(permissions, query, topic_permission_row, lambda p: p.user)


@router.get("/users/{user:seg}/topic-permissions", response_model=TopicPermissions)
async def user_topic_permissions(
    user: str, broker: AppBroker, query: ListParams
) -> FastJsonResponse:
    """Topic permissions of one user."""
    _require_user(broker, user)
    permissions = _topic_permissions(broker, user=user)
    return await list_rows(permissions, query, topic_permission_row, lambda p: p.vhost)


@router.get("/topic-permissions/{vhost:seg}/{user:seg}", response_model=list[TopicPermissionRow])
async def get_topic_permissions(vhost: str, user: str, broker: AppBroker) -> list[dict[str, Any]]:
    """Topic permissions of one user in one virtual host."""
    permissions = _topic_permissions(broker, user, vhost)
    if not permissions:
        raise not_found()
    return [topic_permission_row(permission) for permission in permissions]


@router.put("/topic-permissions/{vhost:seg}/{user:seg}", **CREATED)
async def put_topic_permission(
    vhost: str, user: str, broker: AppBroker, response: Response, body: TopicPermissionBody
) -> None:
    """Set the routing keys with which a user may publish to and bind a topic exchange."""
    _require_user_and_vhost(broker, user, vhost)
    existed = (user, vhost, body.exchange) in broker.users.topic_permissions
    broker.users.set_topic_permission(
        TopicPermissionDefinition(user, vhost, body.exchange, body.write, body.read)
    )
    await until_committed(broker)
    response.status_code = 204 if existed else 201


@router.delete("/topic-permissions/{vhost:seg}/{user:seg}", **NO_CONTENT)
async def delete_topic_permissions(vhost: str, user: str, broker: AppBroker) -> None:
    """Delete a user's topic permissions in one virtual host."""
    permissions = _topic_permissions(broker, user, vhost)
    if not permissions:
        raise not_found()
    for permission in permissions:
        broker.users.clear_topic_permission(user, vhost, permission.exchange)
    await until_committed(broker)


@router.delete("/topic-permissions/{vhost:seg}/{user:seg}/{exchange:seg}", **NO_CONTENT)
async def delete_topic_permission(vhost: str, user: str, exchange: str, broker: AppBroker) -> None:
    """Delete a user's topic permission on one exchange."""
    if (user, vhost, exchange) not in broker.users.topic_permissions:
        raise not_found()
    broker.users.clear_topic_permission(user, vhost, exchange)
    await until_committed(broker)
