"""RabbitMQ's endpoints for streams and super streams, which are logs here."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from leveret.bindings import Destination, DestinationKind
from leveret.broker import Action, Broker, User, VirtualHost
from leveret.broker.access.declare_permissions import require_partition_permission
from leveret.exchange import ExchangeSpec
from leveret.http_admin.auth import AppBroker, CurrentUser, PathVhost
from leveret.http_admin.commit import until_committed
from leveret.http_admin.errors import bad_request
from leveret.http_admin.responses import CREATED, ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.routes.logs import authorize
from leveret.http_admin.rows.logs import tracking_row
from leveret.http_admin.schemas.fields import Table
from leveret.http_admin.schemas.logs import StreamClient, Tracking
from leveret.queues.spec import QueueSpec

router = APIRouter(prefix="/api/stream", tags=["streams"], responses=ERROR_RESPONSES)
MAX_PARTITIONS = 1_000
DEFAULT_PARTITIONS = 3
ORDER = "x-stream-partition-order"


class SuperStreamBody(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    partitions: int | None = Field(default=None, ge=1, le=MAX_PARTITIONS)
    binding_keys: str | None = Field(
        default=None,
        alias="binding-keys",
        description="Keys separated by commas, one partition for each.",
    )
    arguments: Table = Field(default_factory=dict)


@router.put("/super-streams/{vhost:seg}/{name:seg}", **CREATED)
async def put_super_stream(
    vhost: str,
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    response: Response,
    body: SuperStreamBody,
) -> None:
    """Create a super stream: partitions chosen by hash, or one for each binding key."""
    virtual_host = broker.vhosts[authorize(broker, user, vhost, Action.LOG_DECLARE, name)]
    if body.binding_keys is not None and body.partitions is not None:
        raise bad_request("give partitions or binding-keys, not both")
    arguments = {**body.arguments, "x-queue-type": "stream"}
    if body.binding_keys is not None:
        streams = _streams_by_key(name, body.binding_keys)
        _authorize_all(broker, user, virtual_host, name, list(streams))
        is_new = _declare_by_key(virtual_host, name, streams, arguments)
        queues = [virtual_host.queues[stream] for stream in streams]
    else:
        if body.partitions != 1:
            arguments["x-partitions"] = body.partitions or DEFAULT_PARTITIONS
        require_partition_permission(broker, user.name, virtual_host, name, arguments)
        is_new = name not in virtual_host.queues
        spec = QueueSpec(name, True, arguments=arguments)
        queues = [await broker.log_manager.staging.declare(virtual_host, spec)]
    await until_committed(broker, *queues)
    response.status_code = 201 if is_new else 204


def _streams_by_key(name: str, keys: str) -> dict[str, str]:
    """The name of a stream for each binding key."""
    distinct = list(dict.fromkeys(key.strip() for key in keys.split(",") if key.strip()))
    if not distinct or len(distinct) > MAX_PARTITIONS:
        raise bad_request(f"binding-keys must name 1 to {MAX_PARTITIONS} keys")
    return {f"{name}-{key}": key for key in distinct}


def _authorize_all(
    broker: Broker, user: User, vhost: VirtualHost, name: str, streams: list[str]
) -> None:
    """The same permissions as for each step alone: some of the streams may exist already."""
    for stream in streams:
        broker.users.authorize(user.name, vhost.name, Action.QUEUE_DECLARE, queue=stream)
        names = {"destination": stream, "source": name}
        broker.users.authorize(user.name, vhost.name, Action.QUEUE_BIND, **names)


def _declare_by_key(
    vhost: VirtualHost, name: str, streams: dict[str, str], arguments: dict[str, Any]
) -> bool:
    """Declare a direct exchange and a stream for each key; whether the exchange is new."""
    is_new = name not in vhost.exchanges
    vhost.declare_exchange(ExchangeSpec(name, "direct", durable=True))
    for number, (stream, key) in enumerate(streams.items()):
        vhost.declare_queue(QueueSpec(stream, True, arguments=arguments))
        vhost.bind(name, Destination(DestinationKind.QUEUE, stream), key, {ORDER: number})
    return is_new


@router.delete("/super-streams/{vhost:seg}/{name:seg}", **NO_CONTENT)
async def delete_super_stream(vhost: str, name: str, broker: AppBroker, user: CurrentUser) -> None:
    """Delete a super stream with its partitions and records."""
    broker.logs.delete(authorize(broker, user, vhost, Action.LOG_DELETE, name), name)
    await until_committed(broker)


@router.get("/{vhost:seg}/{name:seg}/tracking")
async def get_tracking(vhost: PathVhost, name: str, broker: AppBroker) -> Tracking:
    """Committed offsets by group, and the last sequence numbers of idempotent producers."""
    return tracking_row(broker.logs.tracking(vhost.name, name))


@router.get("/connections")
@router.get("/consumers")
@router.get("/publishers")
async def stream_clients(user: CurrentUser) -> list[StreamClient]:
    """Clients of RabbitMQ's stream protocol, which Leveret does not speak: none."""
    return []


@router.get("/connections/{vhost:seg}")
@router.get("/consumers/{vhost:seg}")
@router.get("/publishers/{vhost:seg}")
async def vhost_stream_clients(vhost: PathVhost) -> list[StreamClient]:
    """Clients of RabbitMQ's stream protocol in one vhost: none."""
    return []
