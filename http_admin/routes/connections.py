"""Connections, channels and consumers: list, show, close."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fastapi import APIRouter, Header

from leveret.broker import Broker, ConnectionEntry, User, VirtualHost
from leveret.http_admin.auth import (
    AppBroker,
    CurrentUser,
    PathVhost,
    sees_everything,
    visible_vhosts,
)
from leveret.http_admin.errors import ApiError, not_found
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ListParams, ListQuery, list_rows
from leveret.http_admin.responses import ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.rows.clients import channel_row, connection_row, consumer_row
from leveret.http_admin.samples import SampleRange, Samples
from leveret.http_admin.schemas.clients import (
    ChannelDetails,
    Channels,
    ConnectionRow,
    Connections,
    Consumers,
)
from leveret.queues.port import Consumer

router = APIRouter(prefix="/api", responses=ERROR_RESPONSES)
Reason = Annotated[str, Header()]
DEFAULT_REASON = "Closed via management plugin"
_CONNECTIONS: list[str | Enum] = ["connections"]
_CHANNELS: list[str | Enum] = ["channels"]
_CONSUMERS: list[str | Enum] = ["consumers"]


# Connections -------------------------------------------------------------------------------------


def _visible(broker: Broker, user: User) -> list[ConnectionEntry]:
    """All connections for monitoring and administrators, the user's own for others."""
    if sees_everything(user):
        return list(broker.connections)
    return [entry for entry in broker.connections if entry.user.name == user.name]


def _visible_in(broker: Broker, user: User, vhost: VirtualHost) -> list[ConnectionEntry]:
    return [entry for entry in _visible(broker, user) if entry.vhost.name == vhost.name]


def _find(broker: Broker, user: User, name: str) -> ConnectionEntry:
    for entry in broker.connections:
        if entry.name == name:
            if not sees_everything(user) and entry.user.name != user.name:
                raise ApiError(403, "this connection belongs to another user")
            return entry
    raise not_found()


async def _list_connections(
    broker: Broker,
    connections: list[ConnectionEntry],
    query: ListQuery,
    samples: SampleRange | None,
) -> FastJsonResponse:
    return await list_rows(
        connections,
        query,
        lambda entry: connection_row(broker, entry, samples),
        lambda entry: entry.name,
    )


@router.get("/connections", tags=_CONNECTIONS, response_model=Connections)
async def list_connections(
    broker: AppBroker, user: CurrentUser, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Open client connections."""
    return await _list_connections(broker, _visible(broker, user), query, samples)


@router.get("/vhosts/{vhost:seg}/connections", tags=_CONNECTIONS, response_model=Connections)
async def list_vhost_connections(
    vhost: PathVhost, broker: AppBroker, user: CurrentUser, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Open client connections of one vhost."""
    return await _list_connections(broker, _visible_in(broker, user, vhost), query, samples)


@router.get("/connections/{name:seg}", tags=_CONNECTIONS)
async def get_connection(
    name: str, broker: AppBroker, user: CurrentUser, samples: Samples
) -> ConnectionRow:
    """One connection."""
    return connection_row(broker, _find(broker, user, name), samples)


@router.delete("/connections/{name:seg}", tags=_CONNECTIONS, **NO_CONTENT)
async def close_connection(
    name: str, broker: AppBroker, user: CurrentUser, x_reason: Reason = DEFAULT_REASON
) -> None:
    """Close a connection. The header X-Reason is sent to the client."""
    entry = _find(broker, user, name)
    _require_owner_or_administrator(entry.user.name, user)
    entry.close(x_reason)


def _require_owner_or_administrator(owner: str, user: User) -> None:
    if owner != user.name and "administrator" not in user.tags:
        raise ApiError(403, "closing another user's connection needs the tag administrator")


@router.get("/connections/username/{user_name:seg}", tags=_CONNECTIONS, response_model=Connections)
async def list_user_connections(
    user_name: str, broker: AppBroker, user: CurrentUser, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Open connections of one user."""
    owned = [entry for entry in _visible(broker, user) if entry.user.name == user_name]
    return await _list_connections(broker, owned, query, samples)


@router.delete("/connections/username/{user_name:seg}", tags=_CONNECTIONS, **NO_CONTENT)
async def close_user_connections(
    user_name: str, broker: AppBroker, user: CurrentUser, x_reason: Reason = DEFAULT_REASON
) -> None:
    """Close all connections of one user."""
    _require_owner_or_administrator(user_name, user)
    for entry in list(broker.connections):
        if entry.user.name == user_name:
            entry.close(x_reason)


# Channels ----------------------------------------------------------------------------------------


async def _list_channels(
    broker: Broker,
    connections: list[ConnectionEntry],
    query: ListQuery,
    samples: SampleRange | None,
) -> FastJsonResponse:
    """The name of a channel is the name of its connection and its number."""
    return await list_rows(
        [(entry, *channel) for entry in connections for channel in entry.channels.items()],
        query,
        lambda item: channel_row(broker, item[2], samples),
        lambda item: f"{item[0].name} ({item[1]})",
    )


@router.get("/connections/{name:seg}/channels", tags=_CONNECTIONS, response_model=Channels)
async def connection_channels(
    name: str, broker: AppBroker, user: CurrentUser, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Channels of one connection."""
    return await _list_channels(broker, [_find(broker, user, name)], query, samples)


@router.get("/channels", tags=_CHANNELS, response_model=Channels)
async def list_channels(
    broker: AppBroker, user: CurrentUser, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Open channels."""
    return await _list_channels(broker, _visible(broker, user), query, samples)


@router.get("/vhosts/{vhost:seg}/channels", tags=_CHANNELS, response_model=Channels)
async def list_vhost_channels(
    vhost: PathVhost, broker: AppBroker, user: CurrentUser, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Open channels of one vhost."""
    return await _list_channels(broker, _visible_in(broker, user, vhost), query, samples)


@router.get("/channels/{name:seg}", tags=_CHANNELS)
async def get_channel(
    name: str, broker: AppBroker, user: CurrentUser, samples: Samples
) -> ChannelDetails:
    """One channel, with its consumers."""
    for entry in _visible(broker, user):
        for number, channel in entry.channels.items():
            if f"{entry.name} ({number})" == name:
                consumers = map(consumer_row, _consumers([entry.vhost]))
                own = [row for row in consumers if row["channel_details"]["name"] == name]
                row = channel_row(broker, channel, samples)
                return {**row, "consumer_details": own, "publishes": [], "deliveries": []}
    raise not_found()


# Consumers ---------------------------------------------------------------------------------------


def _consumers(vhosts: list[VirtualHost]) -> list[Consumer]:
    return [
        consumer
        for vhost in vhosts
        for queue in vhost.queues.values()
        for consumer in queue.consumers
    ]


async def _list_consumers(vhosts: list[VirtualHost], query: ListQuery) -> FastJsonResponse:
    return await list_rows(_consumers(vhosts), query, consumer_row, lambda consumer: consumer.tag)


@router.get("/consumers", tags=_CONSUMERS, response_model=Consumers)
async def list_consumers(
    broker: AppBroker, user: CurrentUser, query: ListParams
) -> FastJsonResponse:
    """Consumers of all vhosts that the user may access."""
    return await _list_consumers(visible_vhosts(broker, user), query)


@router.get("/consumers/{vhost:seg}", tags=_CONSUMERS, response_model=Consumers)
async def list_vhost_consumers(vhost: PathVhost, query: ListParams) -> FastJsonResponse:
    """Consumers of one vhost."""
    return await _list_consumers([vhost], query)
