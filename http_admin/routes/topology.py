"""Exchanges, queues and bindings: list, look at, declare, delete."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from bindings import Binding, Destination, DestinationKind
from exchange import Exchange, ExchangeSpec
from http_admin import shapes
from http_admin.auth import CurrentUser, Hub, InVhost, vhost_for, visible_vhosts
from http_admin.durable import until_durable
from http_admin.errors import bad_request, not_found
from http_admin.fields import Table
from http_admin.listing import List, Wanted, listed, written
from http_admin.paths import exchange_name
from http_admin.queue_columns import quick_queue_columns
from http_admin.samples import SampleRange, Samples
from http_admin.shapes_clients import ExchangePage, QueuePage
from http_admin.turns import InTurn
from http_admin.views import (
    Row,
    binding_row,
    default_binding_row,
    exchange_row,
    queue_row,
)
from leveret.broker import Action, Broker, User, VirtualHost, governing
from queues import HeldQueue, QueueSpec

router = APIRouter(prefix="/api")
IfUnused = Annotated[bool, Query(alias="if-unused")]
IfEmpty = Annotated[bool, Query(alias="if-empty")]
_BINDS = {"queue": Action.QUEUE_BIND, "exchange": Action.EXCHANGE_BIND}
_UNBINDS = {"queue": Action.QUEUE_UNBIND, "exchange": Action.EXCHANGE_UNBIND}


def _vhost_with_queue(hub: Broker, user: User, vhost: str, queue: str) -> VirtualHost:
    held = vhost_for(hub, user, vhost)
    if queue not in held.queues:
        raise not_found()
    return held


def _demand(hub: Broker, user: User, vhost: VirtualHost, action: Action, **names: str) -> None:
    hub.users.demand(user.name, vhost.name, action, **names)


def _demand_binding(
    hub: Broker, user: User, vhost: VirtualHost, actions: dict[str, Action], binding: Binding
) -> None:
    action, destination = actions[binding.destination.kind.value], binding.destination.name
    if binding.destination.kind is DestinationKind.QUEUE:
        vhost.queue(destination)  # unless a connection holds it exclusively
    _demand(hub, user, vhost, action, destination=destination, source=binding.source)
    source = vhost.exchanges.get(binding.source)
    if source is not None:
        hub.users.demand_topic(user.name, vhost.name, action, source, (binding.routing_key,))


# Exchanges ---------------------------------------------------------------------------------------


class ExchangeBody(BaseModel):
    type: str = "direct"
    durable: bool = Field(default=False, description="Whether it survives a restart.")
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = Field(default_factory=dict)


def _exchanges(vhosts: list[VirtualHost]) -> list[tuple[VirtualHost, Exchange]]:
    return [(v, exchange) for v in vhosts for exchange in v.exchanges.values()]


@router.get("/exchanges", tags=["exchanges"], response_model=shapes.Exchanges)
async def list_exchanges(hub: Hub, user: CurrentUser, ask: List, samples: Samples) -> Any:
    """Every exchange the user may see."""
    return await listed(
        _exchanges(visible_vhosts(hub, user)),
        ask,
        lambda one: exchange_row(hub, *one, samples),
        lambda one: one[1].name,
    )


@router.get("/exchanges/{vhost:seg}", tags=["exchanges"], response_model=shapes.Exchanges)
async def list_vhost_exchanges(
    vhost: str, hub: Hub, user: CurrentUser, ask: List, samples: Samples
) -> Any:
    """The exchanges of one vhost."""
    return await listed(
        _exchanges([vhost_for(hub, user, vhost)]),
        ask,
        lambda one: exchange_row(hub, *one, samples),
        lambda one: one[1].name,
    )


@router.get("/exchanges/{vhost:seg}/{name:seg}", tags=["exchanges"], response_model=ExchangePage)
def get_exchange(vhost: str, name: str, hub: Hub, user: CurrentUser, samples: Samples) -> Row:
    """One exchange."""
    held = vhost_for(hub, user, vhost)
    row = exchange_row(hub, held, held.exchange(exchange_name(name)), samples)
    return {**row, "incoming": [], "outgoing": []}


async def _may_declare_exchange(vhost: str, name: str, hub: Hub, user: CurrentUser) -> VirtualHost:
    held = vhost_for(hub, user, vhost)
    _demand(hub, user, held, Action.EXCHANGE_DECLARE, exchange=name)
    return held


@router.put("/exchanges/{vhost:seg}/{name:seg}", tags=["exchanges"], status_code=201)
async def put_exchange(
    held: Annotated[VirtualHost, Depends(_may_declare_exchange)],
    name: str,
    hub: Hub,
    user: CurrentUser,
    response: Response,
    body: ExchangeBody | None = None,
) -> None:
    """Declare an exchange. Without `durable` it is gone after a restart, as with RabbitMQ."""
    wanted = body or ExchangeBody()
    spec = ExchangeSpec(
        name,
        wanted.type,
        wanted.durable,
        wanted.auto_delete,
        wanted.internal,
        wanted.arguments,
    )
    if spec.alternate is not None:
        _demand(hub, user, held, Action.EXCHANGE_ALTERNATE, exchange=name, alternate=spec.alternate)
    existed = name in held.exchanges
    held.declare_exchange(spec)
    await until_durable(hub)
    response.status_code = 204 if existed else 201


@router.delete("/exchanges/{vhost:seg}/{name:seg}", tags=["exchanges"], status_code=204)
async def delete_exchange(
    vhost: str, name: str, hub: Hub, user: CurrentUser, if_unused: IfUnused = False
) -> None:
    """Delete an exchange and its bindings."""
    held = vhost_for(hub, user, vhost)
    held.exchange(exchange_name(name))
    _demand(hub, user, held, Action.EXCHANGE_DELETE, exchange=name)
    held.delete_exchange(exchange_name(name), if_unused)
    await until_durable(hub)


@router.get(
    "/exchanges/{vhost:seg}/{name:seg}/bindings/source",
    tags=["exchanges"],
    response_model=list[shapes.BindingRow],
    dependencies=[InTurn],
)
async def exchange_bindings_from(vhost: str, name: str, hub: Hub, user: CurrentUser) -> Any:
    """Bindings in which the exchange is the source."""
    held = vhost_for(hub, user, vhost)
    found = held.exchange(exchange_name(name))
    ones: list[str | Binding] = list(found.bindings if found.name else held.queues)
    return await written([(held, one) for one in ones], _any_binding_row)


@router.get(
    "/exchanges/{vhost:seg}/{name:seg}/bindings/destination",
    tags=["exchanges"],
    response_model=list[shapes.BindingRow],
    dependencies=[InTurn],
)
async def exchange_bindings_to(vhost: str, name: str, hub: Hub, user: CurrentUser) -> Any:
    """Bindings in which the exchange is the destination."""
    held = vhost_for(hub, user, vhost)
    found = held.exchange(exchange_name(name))
    to = Destination(DestinationKind.EXCHANGE, found.name)
    return await written(held.bindings_to(to), lambda binding: binding_row(held, binding))


# Queues ------------------------------------------------------------------------------------------


class QueueBody(BaseModel):
    durable: bool = Field(default=False, description="Whether it survives a restart.")
    auto_delete: bool = False
    arguments: Table = Field(default_factory=dict)


def _queues(vhosts: list[VirtualHost]) -> list[tuple[VirtualHost, HeldQueue]]:
    return [(v, queue) for v in vhosts for queue in v.queues.values()]


@router.get("/queues", tags=["queues"], response_model=shapes.Queues)
async def list_queues(hub: Hub, user: CurrentUser, ask: List, samples: Samples) -> Any:
    """Every queue the user may see."""
    return await _list_queues(hub, visible_vhosts(hub, user), ask, samples)


@router.get("/queues/{vhost:seg}", tags=["queues"], response_model=shapes.Queues)
async def list_vhost_queues(
    vhost: str, hub: Hub, user: CurrentUser, ask: List, samples: Samples
) -> Any:
    """The queues of one vhost."""
    return await _list_queues(hub, [vhost_for(hub, user, vhost)], ask, samples)


async def _list_queues(
    hub: Broker, vhosts: list[VirtualHost], ask: Wanted, samples: SampleRange | None
) -> Any:
    return await listed(
        _queues(vhosts),
        ask,
        lambda one: queue_row(hub, *one, samples),
        lambda one: one[1].name,
        quick_queue_columns(hub),
    )


@router.get("/queues/{vhost:seg}/{name:seg}", tags=["queues"], response_model=QueuePage)
def get_queue(vhost: str, name: str, hub: Hub, user: CurrentUser, samples: Samples) -> Row:
    """One queue, with its consumers."""
    from http_admin.routes.connections import consumer_row

    held = vhost_for(hub, user, vhost)
    queue = held.queues.get(name)
    if queue is None:
        raise not_found()
    row = queue_row(hub, held, queue, samples)
    row["consumer_details"] = [consumer_row(hub, held, queue, one) for one in queue.consumers]
    row["incoming"], row["deliveries"] = [], []
    return row


async def _may_declare_queue(vhost: str, name: str, hub: Hub, user: CurrentUser) -> VirtualHost:
    """The vhost; rights are looked at before what the body holds is."""
    held = vhost_for(hub, user, vhost)
    _demand(hub, user, held, Action.QUEUE_DECLARE, queue=name)
    return held


@router.put("/queues/{vhost:seg}/{name:seg}", tags=["queues"], status_code=201)
async def put_queue(
    held: Annotated[VirtualHost, Depends(_may_declare_queue)],
    name: str,
    hub: Hub,
    user: CurrentUser,
    response: Response,
    body: QueueBody | None = None,
) -> None:
    """Declare a queue. Without `durable` it is gone after a restart, as with RabbitMQ."""
    wanted = body or QueueBody()
    governing.require_dead_letters(hub, user.name, held, name, wanted.arguments)
    governing.require_partitions(hub, user.name, held, name, wanted.arguments)
    existed = name in held.queues
    spec = QueueSpec(name, wanted.durable, False, wanted.auto_delete, wanted.arguments)
    made = held.declare_queue(held.of_default_type(spec))
    await until_durable(hub, made)
    response.status_code = 204 if existed else 201


@router.delete("/queues/{vhost:seg}/{name:seg}", tags=["queues"], status_code=204)
async def delete_queue(
    vhost: str,
    name: str,
    hub: Hub,
    user: CurrentUser,
    if_unused: IfUnused = False,
    if_empty: IfEmpty = False,
) -> None:
    """Delete a queue and what it holds."""
    held = _vhost_with_queue(hub, user, vhost, name)
    _demand(hub, user, held, Action.QUEUE_DELETE, queue=name)
    held.delete_queue(name, None, if_unused, if_empty)
    await until_durable(hub)


@router.delete("/queues/{vhost:seg}/{name:seg}/contents", tags=["queues"], status_code=204)
async def purge_queue(vhost: str, name: str, hub: Hub, user: CurrentUser) -> None:
    """Drop every ready message."""
    held = _vhost_with_queue(hub, user, vhost, name)
    _demand(hub, user, held, Action.QUEUE_PURGE, queue=name)
    held.queue(name).purge()
    await until_durable(hub)


@router.get(
    "/queues/{vhost:seg}/{name:seg}/bindings",
    tags=["queues"],
    response_model=list[shapes.BindingRow],
    dependencies=[InTurn],
)
async def queue_bindings(vhost: str, name: str, hub: Hub, user: CurrentUser) -> Any:
    """Bindings that lead to the queue, the default one first."""
    held = _vhost_with_queue(hub, user, vhost, name)
    to = Destination(DestinationKind.QUEUE, name)
    found: list[str | Binding] = [name, *held.bindings_to(to)]
    return await written([(held, one) for one in found], _any_binding_row)


# Bindings ----------------------------------------------------------------------------------------


class BindingBody(BaseModel):
    routing_key: str = ""
    arguments: Table = Field(default_factory=dict)


_KINDS = {"q": DestinationKind.QUEUE, "e": DestinationKind.EXCHANGE}


async def _list_bindings(vhosts: list[VirtualHost], ask: Wanted) -> Any:
    """The default ones, known by their queues, come first."""
    found: list[tuple[VirtualHost, str | Binding]] = [
        (v, name) for v in vhosts for name in v.queues
    ]
    found += [(v, binding) for v in vhosts for binding in v.bindings()]
    return await listed(found, ask, _any_binding_row, _source_of)


def _any_binding_row(one: tuple[VirtualHost, str | Binding]) -> Row:
    vhost, binding = one
    if isinstance(binding, str):
        return default_binding_row(vhost, binding)
    return binding_row(vhost, binding)


def _source_of(one: tuple[VirtualHost, str | Binding]) -> str:
    return "" if isinstance(one[1], str) else one[1].source


@router.get("/bindings", tags=["bindings"], response_model=shapes.Bindings)
async def list_bindings(hub: Hub, user: CurrentUser, ask: List) -> Any:
    """Every binding the user may see."""
    return await _list_bindings(visible_vhosts(hub, user), ask)


@router.get("/bindings/{vhost:seg}", tags=["bindings"], response_model=shapes.Bindings)
async def list_vhost_bindings(vhost: str, hub: Hub, user: CurrentUser, ask: List) -> Any:
    """The bindings of one vhost."""
    return await _list_bindings([vhost_for(hub, user, vhost)], ask)


def _destination(kind: str, name: str) -> Destination:
    if kind not in _KINDS:
        raise bad_request("destination type must be q (queue) or e (exchange)")
    return Destination(_KINDS[kind], name)


def _between(held: VirtualHost, source: str, kind: str, destination: str) -> list[Binding]:
    to = _destination(kind, destination)
    exchange = held.exchange(exchange_name(source))
    if to.kind is DestinationKind.QUEUE and destination not in held.queues:
        raise not_found()
    return [binding for binding in exchange.bindings if binding.destination == to]


@router.get(
    "/bindings/{vhost:seg}/e/{source:seg}/{kind}/{destination:seg}",
    tags=["bindings"],
    response_model=list[shapes.BindingRow],
)
def bindings_between(
    vhost: str, source: str, kind: str, destination: str, hub: Hub, user: CurrentUser
) -> list[Row]:
    """Bindings between an exchange and a queue or another exchange; none where one is missing."""
    held, to = vhost_for(hub, user, vhost), _destination(kind, destination)
    exchange = held.exchanges.get(exchange_name(source))
    if exchange is None or (kind == "q" and destination not in held.queues):
        return []
    if not exchange.name and kind == "q":
        return [default_binding_row(held, destination)]
    return [
        binding_row(held, binding) for binding in exchange.bindings if binding.destination == to
    ]


@router.post(
    "/bindings/{vhost:seg}/e/{source:seg}/{kind}/{destination:seg}",
    tags=["bindings"],
    status_code=201,
)
async def add_binding(
    held: InVhost,
    source: str,
    kind: str,
    destination: str,
    hub: Hub,
    user: CurrentUser,
    response: Response,
    body: BindingBody | None = None,
) -> None:
    """Bind; the answer's Location names the binding."""
    _between(held, source, kind, destination)
    wanted = body or BindingBody()
    to = Destination(_KINDS[kind], destination)
    made = Binding.of(exchange_name(source), to, wanted.routing_key, wanted.arguments)
    _demand_binding(hub, user, held, _BINDS, made)
    held.bind(exchange_name(source), to, wanted.routing_key, wanted.arguments)
    await until_durable(hub)
    response.headers["Location"] = f"{quote(destination, '')}/{quote(made.properties_key, '')}"


def _one_binding(
    held: VirtualHost, source: str, kind: str, destination: str, properties_key: str
) -> Binding:
    """By its key as we give it; a plain routing key will do where nothing else has it."""
    found = _between(held, source, kind, destination)
    for binding in found:
        if binding.properties_key == properties_key:
            return binding
    for binding in found:
        if binding.routing_key == properties_key and not binding.arguments:
            return binding
    raise not_found()


@router.get(
    "/bindings/{vhost:seg}/e/{source:seg}/{kind}/{destination:seg}/{properties_key:seg}",
    tags=["bindings"],
    response_model=shapes.BindingRow,
)
def get_binding(
    vhost: str,
    source: str,
    kind: str,
    destination: str,
    properties_key: str,
    hub: Hub,
    user: CurrentUser,
) -> Row:
    """One binding by its properties key."""
    held = vhost_for(hub, user, vhost)
    return binding_row(held, _one_binding(held, source, kind, destination, properties_key))


@router.delete(
    "/bindings/{vhost:seg}/e/{source:seg}/{kind}/{destination:seg}/{properties_key:seg}",
    tags=["bindings"],
    status_code=204,
)
async def delete_binding(
    vhost: str,
    source: str,
    kind: str,
    destination: str,
    properties_key: str,
    hub: Hub,
    user: CurrentUser,
) -> None:
    """Unbind."""
    held = vhost_for(hub, user, vhost)
    found = _one_binding(held, source, kind, destination, properties_key)
    _demand_binding(hub, user, held, _UNBINDS, found)
    held.unbind(found.source, found.destination, found.routing_key, found.arguments)
    await until_durable(hub)
