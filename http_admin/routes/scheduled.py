"""Messages that wait at a delayed exchange: look at the schedule, take one off it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from exchange import DELAYED
from http_admin.auth import CurrentUser, Hub, vhost_for
from http_admin.content import shown_body, shown_properties
from http_admin.durable import until_durable
from http_admin.errors import bad_request, not_found
from http_admin.shapes import MessageProperties
from http_admin.views import Row
from leveret.broker import Action, Broker, User
from leveret.broker.delays import DelayQueue, Scheduled

router = APIRouter(prefix="/api", tags=["exchanges"])
MOST_AT_ONCE = 500
_SHOWN_BYTES = 50_000


class ScheduledRow(BaseModel):
    id: int
    due_ms: int = Field(description="When it goes on: milliseconds since 1970.")
    exchange: str
    routing_key: str
    properties: MessageProperties
    payload_bytes: int
    payload: str
    payload_encoding: str


@router.get("/exchanges/{vhost:seg}/{name:seg}/scheduled", response_model=list[ScheduledRow])
async def list_scheduled(
    vhost: str,
    name: str,
    hub: Hub,
    user: CurrentUser,
    offset: Annotated[int, Query(ge=0)] = 0,
    count: Annotated[int, Query(ge=1, le=MOST_AT_ONCE)] = 100,
) -> list[Row]:
    """Messages that wait at an `x-delayed-message` exchange, soonest first."""
    delayed = _schedule(hub, user, vhost, name, Action.SCHEDULE_READ)
    return [_row(one) for one in await delayed.scheduled(offset, count)] if delayed else []


@router.delete("/exchanges/{vhost:seg}/{name:seg}/scheduled/{message_id}", status_code=204)
async def cancel_scheduled(
    vhost: str, name: str, message_id: int, hub: Hub, user: CurrentUser
) -> None:
    """Take one message off the schedule: it is dropped and never delivered."""
    delayed = _schedule(hub, user, vhost, name, Action.SCHEDULE_CANCEL)
    if delayed is None or not delayed.cancel(message_id):
        raise not_found()
    await until_durable(hub)


def _schedule(hub: Broker, user: User, vhost: str, name: str, action: Action) -> DelayQueue | None:
    held = vhost_for(hub, user, vhost)
    hub.users.demand(user.name, held.name, action, exchange=name)
    exchange = held.exchange(name)
    if exchange.spec.kind != DELAYED:
        raise bad_request(f"exchange '{name}' is of type {exchange.spec.kind}, not {DELAYED}")
    return hub.stations.delays.by_exchange.get(exchange)


def _row(one: Scheduled) -> Row:
    message = one.message
    return {
        "id": message.id,
        "due_ms": one.due_ms,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": shown_properties(message.properties),
        **shown_body(message.body, "auto", _SHOWN_BYTES),
    }
