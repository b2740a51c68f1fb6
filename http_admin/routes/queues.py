"""Queues: list, show, declare, purge, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from leveret.bindings import Binding, Destination, DestinationKind
from leveret.broker import Action, Broker, VirtualHost
from leveret.broker.access.declare_permissions import (
    require_dead_letter_permission,
    require_partition_permission,
)
from leveret.http_admin.auth import AppBroker, CurrentUser, PathVhost, visible_vhosts
from leveret.http_admin.commit import until_committed
from leveret.http_admin.errors import not_found
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ListParams, ListQuery, list_rows, rows_response
from leveret.http_admin.middleware.concurrency import ResponseSlot
from leveret.http_admin.responses import CREATED, ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.rows.clients import consumer_row
from leveret.http_admin.rows.exchanges import any_binding_row
from leveret.http_admin.rows.queues import queue_row, sortable_queue_columns
from leveret.http_admin.samples import SampleRange, Samples
from leveret.http_admin.schemas.exchanges import BindingRow
from leveret.http_admin.schemas.fields import Table
from leveret.http_admin.schemas.queues import QueueDetails, Queues
from leveret.queues.spec import QueueSpec

router = APIRouter(prefix="/api", tags=["queues"], responses=ERROR_RESPONSES)
IfUnused = Annotated[bool, Query(alias="if-unused")]
IfEmpty = Annotated[bool, Query(alias="if-empty")]


class QueueBody(BaseModel):
    durable: bool = Field(default=False, description="Whether it survives a restart.")
    auto_delete: bool = False
    arguments: Table = Field(default_factory=dict)


def _require_queue(vhost: VirtualHost, name: str) -> None:
    if name not in vhost.queues:
        raise not_found()


async def _list(
    broker: Broker, vhosts: list[VirtualHost], query: ListQuery, samples: SampleRange | None
) -> FastJsonResponse:
    return await list_rows(
        [(vhost, queue) for vhost in vhosts for queue in vhost.queues.values()],
        query,
        lambda item: queue_row(broker, *item, samples),
        lambda item: item[1].name,
        sortable_queue_columns(broker) if query.sort else None,
    )


@router.get("/queues", response_model=Queues)
async def list_queues(
    broker: AppBroker, user: CurrentUser, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Queues of all vhosts that the user may access."""
    return await _list(broker, visible_vhosts(broker, user), query, samples)


@router.get("/queues/{vhost:seg}", response_model=Queues)
async def list_vhost_queues(
    vhost: PathVhost, broker: AppBroker, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Queues of one vhost."""
    return await _list(broker, [vhost], query, samples)


@router.get("/queues/{vhost:seg}/{name:seg}")
async def get_queue(
    vhost: PathVhost, name: str, broker: AppBroker, samples: Samples
) -> QueueDetails:
    """One queue, with its consumers."""
    _require_queue(vhost, name)
    queue = vhost.queues[name]
    lost = [it.text for it in broker.store.lost if (it.vhost, it.queue) == (vhost.name, name)]
    return {
        **queue_row(broker, vhost, queue, samples),
        "consumer_details": [consumer_row(consumer) for consumer in queue.consumers],
        "incoming": [],
        "deliveries": [],
        "lost_data": lost,
    }


async def _vhost_to_declare_in(
    vhost: PathVhost, name: str, broker: AppBroker, user: CurrentUser
) -> VirtualHost:
    """The vhost; the permission is checked before the body is validated."""
    broker.users.authorize(user.name, vhost.name, Action.QUEUE_DECLARE, queue=name)
    return vhost


@router.put("/queues/{vhost:seg}/{name:seg}", **CREATED)
async def put_queue(
    vhost: Annotated[VirtualHost, Depends(_vhost_to_declare_in)],
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    response: Response,
    body: QueueBody | None = None,
) -> None:
    """Declare a queue. As with RabbitMQ, it survives a restart only if it is `durable`."""
    fields = body or QueueBody()
    arguments = fields.arguments
    require_dead_letter_permission(broker, user.name, vhost, name, arguments)
    require_partition_permission(broker, user.name, vhost, name, arguments)
    existed = name in vhost.queues
    spec = QueueSpec(name, fields.durable, False, fields.auto_delete, arguments)
    queue = await broker.log_manager.staging.declare(vhost, vhost.with_default_type(spec))
    await until_committed(broker, queue)
    response.status_code = 204 if existed else 201


@router.delete("/queues/{vhost:seg}/{name:seg}", **NO_CONTENT)
async def delete_queue(
    vhost: PathVhost,
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    if_unused: IfUnused = False,
    if_empty: IfEmpty = False,
) -> None:
    """Delete a queue and its messages."""
    _require_queue(vhost, name)
    broker.users.authorize(user.name, vhost.name, Action.QUEUE_DELETE, queue=name)
    vhost.delete_queue(name, None, if_unused, if_empty)
    await until_committed(broker)


@router.delete("/queues/{vhost:seg}/{name:seg}/contents", **NO_CONTENT)
async def purge_queue(vhost: PathVhost, name: str, broker: AppBroker, user: CurrentUser) -> None:
    """Delete all ready messages of a queue."""
    _require_queue(vhost, name)
    broker.users.authorize(user.name, vhost.name, Action.QUEUE_PURGE, queue=name)
    vhost.queue(name).purge()
    await until_committed(broker)


@router.get(
    "/queues/{vhost:seg}/{name:seg}/bindings",
    response_model=list[BindingRow],
    dependencies=[ResponseSlot],
)
async def queue_bindings(vhost: PathVhost, name: str) -> FastJsonResponse:
    """Bindings whose destination is the queue, that of the default exchange first."""
    _require_queue(vhost, name)
    bound = vhost.bindings_to(Destination(DestinationKind.QUEUE, name))
    bindings: list[str | Binding] = [name, *bound]
    items = [(vhost, binding) for binding in bindings]
    return await rows_response(items, any_binding_row)
