"""Who may do what: permissions on names, and on routing keys of topic exchanges."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from http_admin.auth import Hub, require_tag
from http_admin.durable import until_durable
from http_admin.errors import bad_request, not_found
from http_admin.listing import List, listed
from http_admin.shapes import listing
from http_admin.views import Row
from leveret.broker import Broker
from leveret.broker.definitions import permission_row, topic_permission_row
from leveret.model.store import PermissionDefinition, TopicPermissionDefinition

router = APIRouter(prefix="/api", tags=["permissions"], dependencies=[require_tag()])


class PermissionBody(BaseModel):
    configure: str = Field(description="Pattern of the names this user may make and delete.")
    write: str = Field(description="Pattern of the names this user may publish and bind to.")
    read: str = Field(description="Pattern of the names this user may consume and bind from.")


class PermissionRow(PermissionBody):
    user: str
    vhost: str


class TopicPermissionBody(BaseModel):
    exchange: str
    write: str
    read: str


class TopicPermissionRow(TopicPermissionBody):
    user: str
    vhost: str


def _require_both(hub: Broker, user: str, vhost: str) -> None:
    if user not in hub.users.by_name or vhost not in hub.vhosts:
        raise bad_request("vhost_or_user_not_found")


def _require_vhost(hub: Broker, vhost: str) -> None:
    if vhost not in hub.vhosts:
        raise not_found()


def _require_user(hub: Broker, user: str) -> None:
    if user not in hub.users.by_name:
        raise not_found()


# Permissions -------------------------------------------------------------------------------------


@router.get("/permissions", response_model=listing(PermissionRow))
async def list_permissions(hub: Hub, ask: List) -> Any:
    """Every permission."""
    return await listed(hub.users.permissions.values(), ask, permission_row, lambda one: one.user)


@router.get("/vhosts/{vhost:seg}/permissions", response_model=listing(PermissionRow))
async def vhost_permissions(vhost: str, hub: Hub, ask: List) -> Any:
    """Who may do what in one virtual host."""
    _require_vhost(hub, vhost)
    found = [one for one in hub.users.permissions.values() if one.vhost == vhost]
    return await listed(found, ask, permission_row, lambda one: one.user)


@router.get("/users/{user:seg}/permissions", response_model=listing(PermissionRow))
async def user_permissions(user: str, hub: Hub, ask: List) -> Any:
    """What one user may do, and where."""
    _require_user(hub, user)
    found = [one for one in hub.users.permissions.values() if one.user == user]
    return await listed(found, ask, permission_row, lambda one: one.vhost)


@router.get("/permissions/{vhost:seg}/{user:seg}", response_model=PermissionRow)
def get_permission(vhost: str, user: str, hub: Hub) -> Row:
    """What one user may do in one virtual host."""
    found = hub.users.permissions.get((user, vhost))
    if found is None:
        raise not_found()
    return permission_row(found)


@router.put("/permissions/{vhost:seg}/{user:seg}", status_code=201)
async def put_permission(
    vhost: str, user: str, hub: Hub, response: Response, body: PermissionBody
) -> None:
    """Let a user into a virtual host, and say on which names it may act."""
    _require_both(hub, user, vhost)
    existed = hub.users.may_enter(user, vhost)
    hub.users.set_permission(
        PermissionDefinition(user, vhost, body.configure, body.write, body.read)
    )
    await until_durable(hub)
    response.status_code = 204 if existed else 201


@router.delete("/permissions/{vhost:seg}/{user:seg}", status_code=204)
async def delete_permission(vhost: str, user: str, hub: Hub) -> None:
    """Let a user into a virtual host no more."""
    if not hub.users.may_enter(user, vhost):
        raise not_found()
    hub.users.clear_permission(user, vhost)
    await until_durable(hub)


# Topic permissions -------------------------------------------------------------------------------


def _topic_permissions(
    hub: Broker, user: str | None = None, vhost: str | None = None
) -> list[TopicPermissionDefinition]:
    return [
        one
        for one in hub.users.topic_permissions.values()
        if user in (None, one.user) and vhost in (None, one.vhost)
    ]


@router.get("/topic-permissions", response_model=listing(TopicPermissionRow))
async def list_topic_permissions(hub: Hub, ask: List) -> Any:
    """Every topic permission."""
    return await listed(_topic_permissions(hub), ask, topic_permission_row, lambda one: one.user)


@router.get("/vhosts/{vhost:seg}/topic-permissions", response_model=listing(TopicPermissionRow))
async def vhost_topic_permissions(vhost: str, hub: Hub, ask: List) -> Any:
    """Topic permissions in one virtual host."""
    _require_vhost(hub, vhost)
    found = _topic_permissions(hub, vhost=vhost)
    return await listed(found, ask, topic_permission_row, lambda one: one.user)


@router.get("/users/{user:seg}/topic-permissions", response_model=listing(TopicPermissionRow))
async def user_topic_permissions(user: str, hub: Hub, ask: List) -> Any:
    """One user's topic permissions."""
    _require_user(hub, user)
    found = _topic_permissions(hub, user=user)
    return await listed(found, ask, topic_permission_row, lambda one: one.vhost)


@router.get("/topic-permissions/{vhost:seg}/{user:seg}", response_model=list[TopicPermissionRow])
def get_topic_permissions(vhost: str, user: str, hub: Hub) -> list[Row]:
    """One user's topic permissions in one virtual host."""
    found = _topic_permissions(hub, user, vhost)
    if not found:
        raise not_found()
    return [topic_permission_row(one) for one in found]


@router.put("/topic-permissions/{vhost:seg}/{user:seg}", status_code=201)
async def put_topic_permission(
    vhost: str, user: str, hub: Hub, response: Response, body: TopicPermissionBody
) -> None:
    """Say which routing keys of a topic exchange a user may publish and bind with."""
    _require_both(hub, user, vhost)
    existed = (user, vhost, body.exchange) in hub.users.topic_permissions
    hub.users.set_topic_permission(
        TopicPermissionDefinition(user, vhost, body.exchange, body.write, body.read)
    )
    await until_durable(hub)
    response.status_code = 204 if existed else 201


@router.delete("/topic-permissions/{vhost:seg}/{user:seg}", status_code=204)
async def delete_topic_permissions(vhost: str, user: str, hub: Hub) -> None:
    """Remove a user's topic permissions in one virtual host."""
    found = _topic_permissions(hub, user, vhost)
    if not found:
        raise not_found()
    for one in found:
        hub.users.clear_topic_permission(one.user, one.vhost, one.exchange)
    await until_durable(hub)


@router.delete("/topic-permissions/{vhost:seg}/{user:seg}/{exchange:seg}", status_code=204)
async def delete_topic_permission(vhost: str, user: str, exchange: str, hub: Hub) -> None:
    """Remove a user's topic permission on one exchange."""
    if (user, vhost, exchange) not in hub.users.topic_permissions:
        raise not_found()
    hub.users.clear_topic_permission(user, vhost, exchange)
    await until_durable(hub)
