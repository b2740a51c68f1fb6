"""Messages: publish, get, browse without consuming, and where one would go."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from exchange import Exchange
from http_admin.auth import CurrentUser, Hub, InVhost, vhost_for
from http_admin.content import body_of, message_of, shown_body, shown_properties
from http_admin.durable import require_unblocked, until_durable
from http_admin.errors import ApiError
from http_admin.fields import Object, Table
from http_admin.listing import SLICE, written
from http_admin.paths import exchange_name
from http_admin.shapes import BindingRow, MessageProperties
from http_admin.turns import InTurn, in_turn
from http_admin.views import Row, binding_row
from leveret.broker import Action, Broker
from leveret.broker.messages import Getter, Seen, Taken, browse, find_way, publish
from queues import Outcome

router = APIRouter(prefix="/api", tags=["messages"])
LONGEST_WAIT = 20.0
MOST_MESSAGES = 10_000
OCTETS_AT_ONCE = 1024 * 1024


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


class Routed(BaseModel):
    routed: bool = Field(description="Whether at least one queue got the message.")


async def _may_publish(held: InVhost, name: str, hub: Hub, user: CurrentUser) -> Exchange:
    """The exchange; rights are looked at before what the body holds is."""
    exchange = held.exchange(exchange_name(name))
    hub.users.demand(user.name, held.name, Action.PUBLISH, exchange=exchange.name)
    return exchange


@router.post("/exchanges/{vhost:seg}/{name:seg}/publish", response_model=Routed)
async def publish_message(
    exchange: Annotated[Exchange, Depends(_may_publish)],
    held: InVhost,
    hub: Hub,
    user: CurrentUser,
    body: PublishBody,
) -> Row:
    """Publish one message; `amq.default` is the default exchange.

    The answer comes when a persistent message is on disk in every durable queue it went to.
    """
    require_unblocked(hub)
    content = body_of(body.payload, body.payload_encoding)
    message = message_of(exchange.name, body.routing_key, body.properties, content)
    done = publish(hub, held, user, message)
    if not done.taken:
        raise ApiError(400, "a queue refused the message")
    if done.stored:
        await until_durable(hub)
    return {"routed": done.routed}


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
    count: int = Field(default=1, ge=1, le=MOST_MESSAGES)
    ackmode: AckMode = Field(
        default="ack_requeue_true",
        description="What becomes of the messages; requeue_true leaves them in the queue.",
    )
    encoding: Literal["auto", "base64"] = "auto"
    truncate: int | None = Field(default=None, ge=0, description="Octets of each body to show.")
    wait: float = Field(
        default=0, ge=0, le=LONGEST_WAIT, description="Seconds to hold back until there is one."
    )


class GotMessage(BaseModel):
    payload: str
    payload_bytes: int
    payload_encoding: str
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int = Field(description="How many were ready behind this one.")
    properties: MessageProperties


@router.post("/queues/{vhost:seg}/{name:seg}/get", response_model=list[GotMessage])
async def get_messages(
    vhost: str, name: str, hub: Hub, user: CurrentUser, request: Request, body: GetBody
) -> Any:
    """Take messages from a queue; with `wait`, hold back until there is one.

    Messages that are not put back are removed when the answer is sent; a client that has gone away
    by then gets none.
    """
    held = vhost_for(hub, user, vhost)
    queue = held.queue(name)
    hub.users.demand(user.name, held.name, Action.GET, queue=name)
    getter = Getter(hub, held, queue, hub.origin_of(held.name, user.name))
    turn = partial(in_turn, request, user)
    if not body.wait:
        await turn()
    taken = await getter.take(body.count, body.wait, request.is_disconnected, turn)
    if not hub.users.allows(user.name, held.name, Action.GET, queue=name):  # no longer
        getter.settle(taken, Outcome.REQUEUE)
        hub.users.demand(user.name, held.name, Action.GET, queue=name)
    try:
        bodies = [one.entry.message.body_size for one in taken]
        rows = await written(taken, lambda one: _got(one, body), at_once=_at_once(bodies))
    except BaseException:
        getter.settle(taken, Outcome.REQUEUE)
        raise
    getter.settle(taken, _OUTCOMES[body.ackmode])
    return rows


def _at_once(bodies: list[int]) -> int:
    """How many messages are written in one go: about so many octets."""
    return min(SLICE, max(1, len(bodies) * OCTETS_AT_ONCE // max(1, sum(bodies))))


def _got(taken: Taken, ask: GetBody) -> Row:
    message = taken.entry.message
    return {
        **shown_body(message.body, ask.encoding, ask.truncate),
        "redelivered": taken.entry.redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "message_count": taken.left,
        "properties": shown_properties(message.properties),
    }


# Browse ------------------------------------------------------------------------------------------


class SeenMessage(BaseModel):
    position: int = Field(description="Place in the queue, from 1, unacknowledged ones first.")
    id: int = Field(description="The broker's own number of the message, as in its history.")
    state: Literal["ready", "unacked"]
    age_ms: int
    payload: str
    payload_bytes: int
    payload_encoding: str
    redelivered: bool
    exchange: str
    routing_key: str
    properties: MessageProperties


@router.get(
    "/queues/{vhost:seg}/{name:seg}/browse",
    response_model=list[SeenMessage],
    dependencies=[InTurn],
)
async def browse_queue(
    vhost: str,
    name: str,
    hub: Hub,
    user: CurrentUser,
    count: Annotated[int, Query(ge=1, le=1_000)] = 50,
    offset: Annotated[int, Query(ge=0, lt=1 << 32)] = 0,
    truncate: Annotated[int | None, Query(ge=0)] = None,
    encoding: Literal["auto", "base64"] = "auto",
) -> Any:
    """Look at messages, ready and unacknowledged, without consuming them."""
    held = vhost_for(hub, user, vhost)
    queue = held.watched_queue(name)
    hub.users.demand(user.name, held.name, Action.GET, queue=name)
    seen = await browse(hub, queue, offset, count)
    at_once = _at_once([one.message.body_size for one in seen])
    return await written(seen, lambda one: _seen(hub, one, encoding, truncate), at_once=at_once)


def _seen(hub: Broker, seen: Seen, encoding: str, truncate: int | None) -> Row:
    message = seen.message
    return {
        "position": seen.position,
        "id": message.id,
        "state": "unacked" if seen.is_unacked else "ready",
        "age_ms": max(0, hub.clock.wall_ms() - message.time_ms),
        **shown_body(message.body, encoding, truncate),
        "redelivered": seen.redelivered,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": shown_properties(message.properties),
    }


# Dry run -----------------------------------------------------------------------------------------


class RouteBody(BaseModel):
    exchange: str = ""
    routing_key: str = ""
    headers: Table = Field(default_factory=dict)


class RouteAnswer(BaseModel):
    queues: list[str]
    path: list[BindingRow] = Field(description="The bindings it would pass through, in order.")


@router.post("/route/{vhost:seg}", response_model=RouteAnswer)
def dry_run(held: InVhost, body: RouteBody) -> Row:
    """Which queues a message with this key and these headers would reach; nothing is published."""
    way = find_way(held, exchange_name(body.exchange), body.routing_key, body.headers)
    return {"queues": list(way.queues), "path": [binding_row(held, one) for one in way.path]}
