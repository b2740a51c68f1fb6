"""RabbitMQ's endpoints for streams and super streams, over the same logs."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from bindings import Destination, DestinationKind
from exchange import ExchangeSpec
from http_admin.auth import CurrentUser, Hub, vhost_for
from http_admin.durable import until_durable
from http_admin.errors import bad_request
from http_admin.fields import Table
from http_admin.routes.logs import require
from http_admin.shapes import Shape
from http_admin.views import Row
from leveret.broker import Action, User, VirtualHost, governing
from queues import QueueSpec

router = APIRouter(prefix="/api/stream", tags=["streams"])
MOST_PARTITIONS = 1_000
ORDER = "x-stream-partition-order"


class SuperStreamBody(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    partitions: int | None = Field(default=None, ge=1, le=MOST_PARTITIONS)
    binding_keys: str | None = Field(
        default=None, alias="binding-keys", description="A partition for each, by commas."
    )
    arguments: Table = Field(default_factory=dict)


class Tracking(BaseModel):
    offsets: dict[str, int | None]
    writers: dict[str, int]


@router.put("/super-streams/{vhost:seg}/{name:seg}", status_code=201)
async def put_super_stream(
    vhost: str, name: str, hub: Hub, user: CurrentUser, response: Response, body: SuperStreamBody
) -> None:
    """Make a super stream: so many partitions chosen by hash, or one for each binding key."""
    where = require(hub, user, vhost, Action.LOG_DECLARE, name)
    held = hub.vhosts[where]
    if body.binding_keys is not None and body.partitions is not None:
        raise bad_request("give partitions or binding-keys, not both")
    arguments = {**body.arguments, "x-queue-type": "stream"}
    if body.binding_keys is not None:
        streams = _streams(name, body.binding_keys)
        _demand_all(hub, user, held, name, list(streams))
        is_new = _declare_by_key(held, name, streams, arguments)
        made = [held.queues[stream] for stream in streams]
    else:
        if body.partitions != 1:
            arguments["x-partitions"] = body.partitions or 3
        governing.require_partitions(hub, user.name, held, name, arguments)
        is_new = name not in held.queues
        made = [held.declare_queue(QueueSpec(name, True, arguments=arguments))]
    await until_durable(hub, *made)
    response.status_code = 201 if is_new else 204


def _streams(name: str, keys: str) -> dict[str, str]:
    """Keys by the streams they lead to."""
    chosen = list(dict.fromkeys(key.strip() for key in keys.split(",") if key.strip()))
    if not chosen or len(chosen) > MOST_PARTITIONS:
        raise bad_request(f"binding-keys must name 1 to {MOST_PARTITIONS} keys")
    return {f"{name}-{key}": key for key in chosen}


def _demand_all(hub: Hub, user: User, held: VirtualHost, name: str, streams: list[str]) -> None:
    """What it takes to do the same step by step: some of the streams may be somebody's already."""
    for stream in streams:
        hub.users.demand(user.name, held.name, Action.QUEUE_DECLARE, queue=stream)
        what = {"destination": stream, "source": name}
        hub.users.demand(user.name, held.name, Action.QUEUE_BIND, **what)


def _declare_by_key(held: VirtualHost, name: str, streams: dict[str, str], arguments: Row) -> bool:
    """An ordinary direct exchange and a stream for each key: the key itself chooses."""
    is_new = name not in held.exchanges
    held.declare_exchange(ExchangeSpec(name, "direct", durable=True))
    for number, (stream, key) in enumerate(streams.items()):
        held.declare_queue(QueueSpec(stream, True, arguments=arguments))
        to = Destination(DestinationKind.QUEUE, stream)
        held.bind(name, to, key, {ORDER: number})
    return is_new


@router.delete("/super-streams/{vhost:seg}/{name:seg}", status_code=204)
async def delete_super_stream(vhost: str, name: str, hub: Hub, user: CurrentUser) -> None:
    """Delete a super stream with its partitions and records."""
    hub.logs.delete(require(hub, user, vhost, Action.LOG_DELETE, name), name)
    await until_durable(hub)


@router.get("/{vhost:seg}/{name:seg}/tracking", response_model=Tracking)
def get_tracking(vhost: str, name: str, hub: Hub, user: CurrentUser) -> Row:
    """Committed offsets by group, and the last numbers of idempotent producers."""
    return hub.logs.tracking(vhost_for(hub, user, vhost).name, name)


class StreamClient(Shape):
    """A client of RabbitMQ's stream protocol."""

    name: str


@router.get("/connections", response_model=list[StreamClient])
@router.get("/consumers", response_model=list[StreamClient])
@router.get("/publishers", response_model=list[StreamClient])
def stream_protocol(user: CurrentUser) -> list[Row]:
    """Clients of RabbitMQ's stream protocol, which is not spoken here: none."""
    return []


@router.get("/connections/{vhost:seg}", response_model=list[StreamClient])
@router.get("/consumers/{vhost:seg}", response_model=list[StreamClient])
@router.get("/publishers/{vhost:seg}", response_model=list[StreamClient])
def stream_protocol_of_vhost(vhost: str, hub: Hub, user: CurrentUser) -> list[Row]:
    """Clients of RabbitMQ's stream protocol in one vhost: none."""
    vhost_for(hub, user, vhost)
    return []
