"""Exchanges: list, show, declare, delete; and messages scheduled at a delayed exchange."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from leveret.bindings import Binding, Destination, DestinationKind
from leveret.broker import Action, Broker, User, VirtualHost
from leveret.broker.publishing.delayed import DelayQueue, Scheduled
from leveret.exchange import DELAYED, Exchange, ExchangeSpec
from leveret.http_admin.auth import AppBroker, CurrentUser, PathVhost, visible_vhosts
from leveret.http_admin.commit import until_committed
from leveret.http_admin.content import payload_fields, shown_properties
from leveret.http_admin.errors import bad_request, not_found
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ListParams, ListQuery, list_rows, rows_response
from leveret.http_admin.middleware.concurrency import ResponseSlot
from leveret.http_admin.middleware.raw_path import exchange_name
from leveret.http_admin.responses import CREATED, ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.rows.exchanges import any_binding_row, binding_row, exchange_row
from leveret.http_admin.samples import SampleRange, Samples
from leveret.http_admin.schemas.exchanges import BindingRow, ExchangeDetails, Exchanges
from leveret.http_admin.schemas.fields import Table
from leveret.http_admin.schemas.messages import ScheduledMessage

router = APIRouter(prefix="/api", tags=["exchanges"], responses=ERROR_RESPONSES)
IfUnused = Annotated[bool, Query(alias="if-unused")]
MAX_SCHEDULED = 500
MAX_SCHEDULED_PAYLOAD = 50_000


class ExchangeBody(BaseModel):
    type: str = "direct"
    durable: bool = Field(default=False, description="Whether it survives a restart.")
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = Field(default_factory=dict)


async def _list(
    broker: Broker, vhosts: list[VirtualHost], query: ListQuery, samples: SampleRange | None
) -> FastJsonResponse:
    return await list_rows(
        [(vhost, exchange) for vhost in vhosts for exchange in vhost.exchanges.values()],
        query,
        lambda item: exchange_row(broker, *item, samples),
        lambda item: item[1].name,
    )


@router.get("/exchanges", response_model=Exchanges)
async def list_exchanges(
    broker: AppBroker, user: CurrentUser, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Exchanges of all vhosts that the user may access."""
    return await _list(broker, visible_vhosts(broker, user), query, samples)


@router.get("/exchanges/{vhost:seg}", response_model=Exchanges)
async def list_vhost_exchanges(
    vhost: PathVhost, broker: AppBroker, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Exchanges of one vhost."""
    return await _list(broker, [vhost], query, samples)


@router.get("/exchanges/{vhost:seg}/{name:seg}")
async def get_exchange(
    vhost: PathVhost, name: str, broker: AppBroker, samples: Samples
) -> ExchangeDetails:
    """One exchange."""
    exchange = vhost.exchange(exchange_name(name))
    row = exchange_row(broker, vhost, exchange, samples)
    return {**row, "incoming": [], "outgoing": []}


async def _vhost_to_declare_in(
    vhost: PathVhost, name: str, broker: AppBroker, user: CurrentUser
) -> VirtualHost:
    """The vhost; the permission is checked before the body is validated."""
    broker.users.authorize(user.name, vhost.name, Action.EXCHANGE_DECLARE, exchange=name)
    return vhost


@router.put("/exchanges/{vhost:seg}/{name:seg}", **CREATED)
async def put_exchange(
    vhost: Annotated[VirtualHost, Depends(_vhost_to_declare_in)],
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    response: Response,
    body: ExchangeBody | None = None,
) -> None:
    """Declare an exchange. As with RabbitMQ, it survives a restart only if it is `durable`."""
    fields = body or ExchangeBody()
    spec = ExchangeSpec(
        name,
        fields.type,
        fields.durable,
        fields.auto_delete,
        fields.internal,
        fields.arguments,
    )
    if spec.alternate is not None:
        names = {"exchange": name, "alternate": spec.alternate}
        broker.users.authorize(user.name, vhost.name, Action.EXCHANGE_ALTERNATE, **names)
    existed = name in vhost.exchanges
    vhost.declare_exchange(spec)
    await until_committed(broker)
    response.status_code = 204 if existed else 201


@router.delete("/exchanges/{vhost:seg}/{name:seg}", **NO_CONTENT)
async def delete_exchange(
    vhost: PathVhost,
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    if_unused: IfUnused = False,
) -> None:
    """Delete an exchange and its bindings."""
    vhost.exchange(exchange_name(name))
    broker.users.authorize(user.name, vhost.name, Action.EXCHANGE_DELETE, exchange=name)
    vhost.delete_exchange(exchange_name(name), if_unused)
    await until_committed(broker)


@router.get(
    "/exchanges/{vhost:seg}/{name:seg}/bindings/source",
    response_model=list[BindingRow],
    dependencies=[ResponseSlot],
)
async def exchange_bindings_from(vhost: PathVhost, name: str) -> FastJsonResponse:
    """Bindings whose source is the exchange."""
    exchange = vhost.exchange(exchange_name(name))
    bindings: list[str | Binding] = list(exchange.bindings if exchange.name else vhost.queues)
    items = [(vhost, binding) for binding in bindings]
    return await rows_response(items, any_binding_row)


@router.get(
    "/exchanges/{vhost:seg}/{name:seg}/bindings/destination",
    response_model=list[BindingRow],
    dependencies=[ResponseSlot],
)
async def exchange_bindings_to(vhost: PathVhost, name: str) -> FastJsonResponse:
    """Bindings whose destination is the exchange."""
    exchange = vhost.exchange(exchange_name(name))
    bindings = vhost.bindings_to(Destination(DestinationKind.EXCHANGE, exchange.name))
    return await rows_response(bindings, lambda binding: binding_row(vhost, binding))


# Scheduled messages ------------------------------------------------------------------------------


def _maybe_delay_queue(
    broker: Broker, user: User, vhost: VirtualHost, name: str, action: Action
) -> DelayQueue | None:
    """The messages that wait at the exchange; None if no message was ever delayed."""
    broker.users.authorize(user.name, vhost.name, action, exchange=name)
    exchange: Exchange = vhost.exchange(name)
    if exchange.spec.kind != DELAYED:
        raise bad_request(f"exchange '{name}' is of type {exchange.spec.kind}, not {DELAYED}")
    return broker.plugin_exchanges.delay_queues.by_exchange.get(exchange)


@router.get("/exchanges/{vhost:seg}/{name:seg}/scheduled")
async def list_scheduled(
    vhost: PathVhost,
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    offset: Annotated[int, Query(ge=0)] = 0,
    count: Annotated[int, Query(ge=1, le=MAX_SCHEDULED)] = 100,
) -> list[ScheduledMessage]:
    """Messages that wait at an `x-delayed-message` exchange, the next one first."""
    delayed = _maybe_delay_queue(broker, user, vhost, name, Action.SCHEDULE_READ)
    return [_scheduled_row(s) for s in await delayed.scheduled(offset, count)] if delayed else []


@router.delete("/exchanges/{vhost:seg}/{name:seg}/scheduled/{message_id}", **NO_CONTENT)
async def cancel_scheduled(
    vhost: PathVhost, name: str, message_id: int, broker: AppBroker, user: CurrentUser
) -> None:
    """Cancel one scheduled message: it is dropped and never delivered."""
    delayed = _maybe_delay_queue(broker, user, vhost, name, Action.SCHEDULE_CANCEL)
    if delayed is None or not delayed.cancel(message_id):
        raise not_found()
    await until_committed(broker)


def _scheduled_row(scheduled: Scheduled) -> ScheduledMessage:
    message = scheduled.message
    return {
        "id": message.id,
        "due_ms": scheduled.due_ms,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": shown_properties(message.properties),
        **payload_fields(message.body, "auto", MAX_SCHEDULED_PAYLOAD),
    }
