"""Connections, channels and consumers: list, look at, close."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header

from http_admin import shapes_clients as shapes
from http_admin.auth import CurrentUser, Hub, sees_everything, vhost_for, visible_vhosts
from http_admin.errors import ApiError, not_found
from http_admin.listing import List, Wanted, listed
from http_admin.samples import SampleRange, Samples
from http_admin.views import Row, channel_row, connection_row
from leveret.broker import Broker, ConnectionEntry, User, VirtualHost
from queues import Consumer, HeldQueue

router = APIRouter(prefix="/api")
Reason = Annotated[str, Header()]
CLOSED_BY_HAND = "Closed via management plugin"


def consumer_row(hub: Broker, vhost: VirtualHost, queue: HeldQueue, consumer: Consumer) -> Row:
    return consumer.describe()


def _visible(hub: Broker, user: User) -> list[ConnectionEntry]:
    """Everybody's for monitoring and administrators, one's own otherwise."""
    if sees_everything(user):
        return list(hub.connections)
    return [one for one in hub.connections if one.user.name == user.name]


def _find(hub: Broker, user: User, name: str) -> ConnectionEntry:
    for one in hub.connections:
        if one.name == name:
            if not sees_everything(user) and one.user.name != user.name:
                raise ApiError(403, "this connection is another user's")
            return one
    raise not_found()


@router.get("/connections", tags=["connections"], response_model=shapes.Connections)
async def list_connections(hub: Hub, user: CurrentUser, ask: List, samples: Samples) -> Any:
    """Open client connections."""
    return await _list_connections(hub, _visible(hub, user), ask, samples)


@router.get(
    "/vhosts/{vhost:seg}/connections", tags=["connections"], response_model=shapes.Connections
)
async def list_vhost_connections(
    vhost: str, hub: Hub, user: CurrentUser, ask: List, samples: Samples
) -> Any:
    """Open client connections of one vhost."""
    vhost_for(hub, user, vhost)
    here = [one for one in _visible(hub, user) if one.vhost.name == vhost]
    return await _list_connections(hub, here, ask, samples)


async def _list_connections(
    hub: Broker, found: list[ConnectionEntry], ask: Wanted, samples: SampleRange | None
) -> Any:
    return await listed(
        found, ask, lambda one: connection_row(hub, one, samples), lambda one: one.name
    )


@router.get("/connections/{name:seg}", tags=["connections"], response_model=shapes.ConnectionRow)
def get_connection(name: str, hub: Hub, user: CurrentUser, samples: Samples) -> Row:
    """One connection."""
    return connection_row(hub, _find(hub, user, name), samples)


@router.delete("/connections/{name:seg}", tags=["connections"], status_code=204)
def close_connection(
    name: str, hub: Hub, user: CurrentUser, x_reason: Reason = CLOSED_BY_HAND
) -> None:
    """Ask the client to go; the header X-Reason is told to it."""
    found = _find(hub, user, name)
    _require_administrator_for(found.user.name, user)
    found.close(x_reason)


def _require_administrator_for(owner: str, user: User) -> None:
    if owner != user.name and "administrator" not in user.tags:
        raise ApiError(403, "closing another user's connection needs the tag administrator")


@router.get(
    "/connections/username/{user_name:seg}",
    tags=["connections"],
    response_model=shapes.Connections,
)
async def list_user_connections(
    user_name: str, hub: Hub, user: CurrentUser, ask: List, samples: Samples
) -> Any:
    """Open connections of one user."""
    theirs = [one for one in _visible(hub, user) if one.user.name == user_name]
    return await _list_connections(hub, theirs, ask, samples)


@router.delete("/connections/username/{user_name:seg}", tags=["connections"], status_code=204)
def close_user_connections(
    user_name: str, hub: Hub, user: CurrentUser, x_reason: Reason = CLOSED_BY_HAND
) -> None:
    """Ask all clients of one user to go."""
    _require_administrator_for(user_name, user)
    for one in list(hub.connections):
        if one.user.name == user_name:
            one.close(x_reason)


@router.get(
    "/connections/{name:seg}/channels", tags=["connections"], response_model=shapes.Channels
)
async def connection_channels(
    name: str, hub: Hub, user: CurrentUser, ask: List, samples: Samples
) -> Any:
    """The channels of one connection."""
    return await _list_channels(hub, [_find(hub, user, name)], ask, samples)


@router.get("/channels", tags=["channels"], response_model=shapes.Channels)
async def list_channels(hub: Hub, user: CurrentUser, ask: List, samples: Samples) -> Any:
    """Open channels."""
    return await _list_channels(hub, _visible(hub, user), ask, samples)


@router.get("/vhosts/{vhost:seg}/channels", tags=["channels"], response_model=shapes.Channels)
async def list_vhost_channels(
    vhost: str, hub: Hub, user: CurrentUser, ask: List, samples: Samples
) -> Any:
    """Open channels of one vhost."""
    vhost_for(hub, user, vhost)
    here = [one for one in _visible(hub, user) if one.vhost.name == vhost]
    return await _list_channels(hub, here, ask, samples)


async def _list_channels(
    hub: Broker, connections: list[ConnectionEntry], ask: Wanted, samples: SampleRange | None
) -> Any:
    """A channel's name is its connection's name and its number."""
    found = [(one, *channel) for one in connections for channel in one.channels.items()]
    return await listed(
        found,
        ask,
        lambda at: channel_row(hub, at[2], samples),
        lambda at: f"{at[0].name} ({at[1]})",
    )


@router.get("/channels/{name:seg}", tags=["channels"], response_model=shapes.ChannelPage)
def get_channel(name: str, hub: Hub, user: CurrentUser, samples: Samples) -> Row:
    """One channel, with its consumers."""
    for one in _visible(hub, user):
        for number, channel in one.channels.items():
            if f"{one.name} ({number})" == name:
                consumers = [consumer.describe() for consumer in _consumers([one.vhost])]
                mine = [c for c in consumers if c["channel_details"]["name"] == name]
                row = channel_row(hub, channel, samples)
                return {**row, "consumer_details": mine, "publishes": [], "deliveries": []}
    raise not_found()


def _consumers(vhosts: list[VirtualHost]) -> list[Consumer]:
    return [
        consumer
        for vhost in vhosts
        for queue in vhost.queues.values()
        for consumer in queue.consumers
    ]


async def _list_consumers(vhosts: list[VirtualHost], ask: Wanted) -> Any:
    found = _consumers(vhosts)
    return await listed(found, ask, lambda one: one.describe(), lambda one: one.tag)


@router.get("/consumers", tags=["consumers"], response_model=shapes.Consumers)
async def list_consumers(hub: Hub, user: CurrentUser, ask: List) -> Any:
    """Consumers of every vhost the user may see."""
    return await _list_consumers(visible_vhosts(hub, user), ask)


@router.get("/consumers/{vhost:seg}", tags=["consumers"], response_model=shapes.Consumers)
async def list_vhost_consumers(vhost: str, hub: Hub, user: CurrentUser, ask: List) -> Any:
    """Consumers of one vhost."""
    return await _list_consumers([vhost_for(hub, user, vhost)], ask)
