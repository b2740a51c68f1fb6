"""Messages: publish, get, browse without consuming, and simulate routing."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from leveret.broker import Action, Broker, messages
from leveret.broker.messages import PolledMessage, QueueGetter
from leveret.exchange import Exchange
from leveret.http_admin.auth import AppBroker, CurrentUser, PathVhost
from leveret.http_admin.commit import require_unblocked, until_committed
from leveret.http_admin.content import (
    MAX_SHOWN_BODY,
    body_of,
    message_of,
    payload_fields,
    shown_properties,
)
from leveret.http_admin.errors import ApiError
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ROWS_PER_STEP, rows_response
from leveret.http_admin.middleware.concurrency import (
    ResponseSlot,
    take_response_slot,
    take_response_slot_after_wait,
)
from leveret.http_admin.middleware.raw_path import exchange_name
from leveret.http_admin.responses import ERROR_RESPONSES
from leveret.http_admin.rows.exchanges import binding_row
from leveret.http_admin.schemas.fields import Object, Table
from leveret.http_admin.schemas.messages import BrowsedMessage, GotMessage, Routed, RouteResult
from leveret.queues.entry import Outcome

router = APIRouter(prefix="/api", tags=["messages"], responses=ERROR_RESPONSES)
MAX_WAIT_SECONDS = 20.0
MAX_MESSAGES = 10_000
BYTES_PER_SLICE = 1024 * 1024


# Publish -----------------------------------------------------------------------------------------


class PublishBody(BaseModel):
    routing_key: str
    payload: str
    payload_encoding: str = Field(
        default="string", description="string (the payload is the body, as UTF-8) or base64."
    )
    properties: Object = Field(
        default_factory=dict,
        description="AMQP properties by name, such as delivery_mode, headers or message_id.",
    )


async def _exchange_to_publish_to(
    vhost: PathVhost, name: str, broker: AppBroker, user: CurrentUser
) -> Exchange:
    """The exchange; the permission is checked before the body is validated."""
    exchange = vhost.exchange(exchange_name(name))
    broker.users.authorize(user.name, vhost.name, Action.PUBLISH, exchange=exchange.name)
    return exchange


@router.post("/exchanges/{vhost:seg}/{name:seg}/publish")
async def publish_message(
    exchange: Annotated[Exchange, Depends(_exchange_to_publish_to)],
    vhost: PathVhost,
    broker: AppBroker,
    user: CurrentUser,
    body: PublishBody,
) -> Routed:
    """Publish one message; `amq.default` is the default exchange.

    The response is sent when a persistent message is on disk in all durable queues that got it.
    """
    require_unblocked(broker)
    content = body_of(body.payload, body.payload_encoding)
    message = message_of(exchange.name, body.routing_key, body.properties, content)
    published = messages.publish(broker, vhost, user, message)
    if not published.accepted:
        raise ApiError(400, "a queue refused the message")
    if published.stored:
        await until_committed(broker)
    return {"routed": published.routed}


# Get ---------------------------------------------------------------------------------------------

AckMode = Literal["ack_requeue_true", "ack_requeue_false", "reject_requeue_true",
                  "reject_requeue_false"]  # fmt: skip
_OUTCOMES = {
    "ack_requeue_true": Outcome.REQUEUE,
    "ack_requeue_false": Outcome.ACK,
    "reject_requeue_true": Outcome.REQUEUE,
    "reject_requeue_false": Outcome.REJECT,
}


class GetBody(BaseModel):
    count: int = Field(default=1, ge=1, le=MAX_MESSAGES)
    ackmode: AckMode = Field(
        default="ack_requeue_true",
        description="How the messages are settled; requeue_true leaves them in the queue.",
    )
    encoding: Literal["auto", "base64"] = "auto"
    truncate: int | None = Field(default=None, ge=0, description="Bytes of each body to return.")
    wait: float = Field(
        default=0, ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for a first message."
    )


@router.post("/queues/{vhost:seg}/{name:seg}/get", response_model=list[GotMessage])
async def get_messages(
    vhost: PathVhost,
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    request: Request,
    body: GetBody,
) -> FastJsonResponse:
    """Get messages from a queue; with `wait`, wait until there is one.

    Messages that are not requeued are removed when the response is sent. If the client has
    disconnected by then, none are. A body of more than 16 MiB needs `truncate`.
    """
    queue = vhost.queue(name)
    broker.users.authorize(user.name, vhost.name, Action.GET, queue=name)
    getter = QueueGetter(broker, vhost, queue, broker.http_origin(vhost.name, user.name))
    take_slot = partial(take_response_slot_after_wait, request, user)
    if not body.wait:
        await take_response_slot(request, user)
    deliveries = await getter.get(body.count, body.wait, request.is_disconnected, take_slot)
    if not broker.users.is_authorized(user.name, vhost.name, Action.GET, queue=name):
        getter.settle(deliveries, Outcome.REQUEUE)  # the permission was revoked during the wait
        broker.users.authorize(user.name, vhost.name, Action.GET, queue=name)
    try:
        size = _step_size([item.entry.message.body_size for item in deliveries])
        response = await rows_response(
            deliveries, lambda item: _got_row(item, body), step_size=size
        )
    except BaseException:
        getter.settle(deliveries, Outcome.REQUEUE)
        raise
    getter.settle(deliveries, _OUTCOMES[body.ackmode])
    return response


def _step_size(body_sizes: list[int]) -> int:
    """How many messages are encoded at once: about `BYTES_PER_SLICE`."""
    count = len(body_sizes) * BYTES_PER_SLICE // max(1, sum(body_sizes))
    return min(ROWS_PER_STEP, max(1, count))


def _got_row(polled: PolledMessage, body: GetBody) -> GotMessage:
    message = polled.entry.message
    return {
        **payload_fields(message.body_in_pieces(), body.encoding, body.truncate),
        "redelivered": polled.entry.redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_count": polled.ready_count,
        "properties": shown_properties(message.properties),
    }


# Browse ------------------------------------------------------------------------------------------


@router.get(
    "/queues/{vhost:seg}/{name:seg}/browse",
    response_model=list[BrowsedMessage],
    dependencies=[ResponseSlot],
)
async def browse_queue(
    vhost: PathVhost,
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    count: Annotated[int, Query(ge=1, le=1_000)] = 50,
    offset: Annotated[int, Query(ge=0, lt=1 << 32)] = 0,
    truncate: Annotated[int | None, Query(ge=0)] = None,
    encoding: Literal["auto", "base64"] = "auto",
) -> FastJsonResponse:
    """Ready and unacknowledged messages of a queue, without consuming them.

    Of a body, at most 16 MiB are returned; `payload_bytes` is its whole size.
    """
    shown = MAX_SHOWN_BODY if truncate is None else min(truncate, MAX_SHOWN_BODY)
    queue = vhost.inspect_queue(name)
    broker.users.authorize(user.name, vhost.name, Action.GET, queue=name)
    seen = await messages.browse(broker, queue, offset, count)
    size = _step_size([item.message.body_size for item in seen])
    return await rows_response(
        seen, lambda item: _browsed_row(broker, item, encoding, shown), step_size=size
    )


def _browsed_row(
    broker: Broker, seen: messages.BrowsedMessage, encoding: str, truncate: int
) -> BrowsedMessage:
    message = seen.message
    return {
        "position": seen.position,
        "id": message.id,
        "state": "unacked" if seen.is_unacked else "ready",
        "age_ms": max(0, broker.clock.wall_ms() - message.time_ms),
        **payload_fields(message.body_in_pieces(), encoding, truncate),
        "redelivered": seen.redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": shown_properties(message.properties),
    }


# Routing -----------------------------------------------------------------------------------------


class RouteBody(BaseModel):
    exchange: str = ""
    routing_key: str = ""
    headers: Table = Field(default_factory=dict)


@router.post("/route/{vhost:seg}")
async def simulate_routing(vhost: PathVhost, body: RouteBody) -> RouteResult:
    """The queues that a message would be routed to. Nothing is published."""
    route = messages.dry_run(vhost, exchange_name(body.exchange), body.routing_key, body.headers)
    path = [binding_row(vhost, binding) for binding in route.bindings]
    return {"queues": list(route.queues), "path": path}
