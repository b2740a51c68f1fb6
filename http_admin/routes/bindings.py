"""Bindings: list, show, add, delete."""

from __future__ import annotations

from itertools import repeat
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from leveret.bindings import Binding, Destination, DestinationKind
from leveret.broker import Action, Broker, User, VirtualHost
from leveret.broker.runtime.slices import Steps, run_in_slices
from leveret.http_admin.auth import AppBroker, CurrentUser, PathVhost, visible_vhosts
from leveret.http_admin.commit import until_committed
from leveret.http_admin.errors import bad_request, not_found
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ListParams, ListQuery, list_rows, rows_response
from leveret.http_admin.middleware.raw_path import exchange_name
from leveret.http_admin.responses import ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.rows.exchanges import VhostBinding, any_binding_row, binding_row
from leveret.http_admin.schemas.exchanges import BindingRow, Bindings
from leveret.http_admin.schemas.fields import Table

router = APIRouter(prefix="/api", tags=["bindings"], responses=ERROR_RESPONSES)
_BETWEEN = "/bindings/{vhost:seg}/e/{source:seg}/{kind}/{destination:seg}"
BINDINGS_PER_STEP = 1_000
_KINDS = {"q": DestinationKind.QUEUE, "e": DestinationKind.EXCHANGE}
_BIND = {"queue": Action.QUEUE_BIND, "exchange": Action.EXCHANGE_BIND}
_UNBIND = {"queue": Action.QUEUE_UNBIND, "exchange": Action.EXCHANGE_UNBIND}


class BindingBody(BaseModel):
    routing_key: str = ""
    arguments: Table = Field(default_factory=dict)


async def _list(vhosts: list[VirtualHost], query: ListQuery) -> FastJsonResponse:
    """Bindings to the default exchange, which are known by their queues, come first."""
    bindings = await run_in_slices(_all_bindings(vhosts))
    return await list_rows(bindings, query, any_binding_row, _source_of)


def _all_bindings(vhosts: list[VirtualHost]) -> Steps[list[VhostBinding]]:
    found: list[VhostBinding] = []
    by_vhost: list[tuple[VirtualHost, list[Any]]] = [
        *((vhost, list(vhost.queues)) for vhost in vhosts),
        *((vhost, list(vhost.bindings())) for vhost in vhosts),
    ]
    for vhost, bindings in by_vhost:
        for start in range(0, len(bindings), BINDINGS_PER_STEP):
            found += zip(repeat(vhost), bindings[start : start + BINDINGS_PER_STEP])
            yield
    return found


def _source_of(item: VhostBinding) -> str:
    return "" if isinstance(item[1], str) else item[1].source


@router.get("/bindings", response_model=Bindings)
async def list_bindings(
    broker: AppBroker, user: CurrentUser, query: ListParams
) -> FastJsonResponse:
    """Bindings of all vhosts that the user may access."""
    return await _list(visible_vhosts(broker, user), query)


@router.get("/bindings/{vhost:seg}", response_model=Bindings)
async def list_vhost_bindings(vhost: PathVhost, query: ListParams) -> FastJsonResponse:
    """Bindings of one vhost."""
    return await _list([vhost], query)


def _destination(kind: str, name: str) -> Destination:
    if kind not in _KINDS:
        raise bad_request("destination type must be q (queue) or e (exchange)")
    return Destination(_KINDS[kind], name)


def _bindings_between(
    vhost: VirtualHost, source: str, kind: str, destination: str
) -> list[Binding]:
    """404 if either end is missing."""
    target = _destination(kind, destination)
    exchange = vhost.exchange(exchange_name(source))
    if target.kind is DestinationKind.QUEUE and destination not in vhost.queues:
        raise not_found()
    return [binding for binding in exchange.bindings if binding.destination == target]


@router.get(_BETWEEN, response_model=list[BindingRow])
async def bindings_between(
    vhost: PathVhost, source: str, kind: str, destination: str
) -> FastJsonResponse:
    """Bindings between an exchange and a queue or another exchange; none if one is missing."""
    target = _destination(kind, destination)
    exchange = vhost.exchanges.get(exchange_name(source))
    bindings: list[str | Binding] = []
    if exchange is not None and (kind == "e" or destination in vhost.queues):
        if not exchange.name and kind == "q":
            bindings = [destination]
        else:
            bindings = [bound for bound in exchange.bindings if bound.destination == target]
    items = [(vhost, binding) for binding in bindings]
    return await rows_response(items, any_binding_row)


def _authorize(
    broker: Broker, user: User, vhost: VirtualHost, actions: dict[str, Action], binding: Binding
) -> None:
    action, destination = actions[binding.destination.kind.value], binding.destination.name
    if binding.destination.kind is DestinationKind.QUEUE:
        vhost.queue(destination)  # refuses a queue that is exclusive to a connection
    names = {"destination": destination, "source": binding.source}
    broker.users.authorize(user.name, vhost.name, action, **names)
    source = vhost.exchanges.get(binding.source)
    if source is not None:
        keys = (binding.routing_key,)
        broker.users.authorize_topic(user.name, vhost.name, action, source, keys)


@router.post(_BETWEEN, status_code=201, response_class=Response)
async def add_binding(
    vhost: PathVhost,
    source: str,
    kind: str,
    destination: str,
    broker: AppBroker,
    user: CurrentUser,
    response: Response,
    body: BindingBody | None = None,
) -> None:
    """Bind an exchange to a queue or an exchange. The header Location names the binding."""
    _bindings_between(vhost, source, kind, destination)
    fields = body or BindingBody()
    target = Destination(_KINDS[kind], destination)
    binding = Binding.of(exchange_name(source), target, fields.routing_key, fields.arguments)
    _authorize(broker, user, vhost, _BIND, binding)
    vhost.bind(exchange_name(source), target, fields.routing_key, fields.arguments)
    await until_committed(broker)
    response.headers["Location"] = f"{quote(destination, '')}/{quote(binding.properties_key, '')}"


def _find(
    vhost: VirtualHost, source: str, kind: str, destination: str, properties_key: str
) -> Binding:
    """By properties key, or by a routing key without arguments that is no properties key."""
    bindings = _bindings_between(vhost, source, kind, destination)
    for binding in bindings:
        if binding.properties_key == properties_key:
            return binding
    for binding in bindings:
        if binding.routing_key == properties_key and not binding.arguments:
            return binding
    raise not_found()


@router.get(_BETWEEN + "/{properties_key:seg}")
async def get_binding(
    vhost: PathVhost, source: str, kind: str, destination: str, properties_key: str
) -> BindingRow:
    """One binding by its properties key."""
    return binding_row(vhost, _find(vhost, source, kind, destination, properties_key))


@router.delete(_BETWEEN + "/{properties_key:seg}", **NO_CONTENT)
async def delete_binding(
    vhost: PathVhost,
    source: str,
    kind: str,
    destination: str,
    properties_key: str,
    broker: AppBroker,
    user: CurrentUser,
) -> None:
    """Delete a binding."""
    binding = _find(vhost, source, kind, destination, properties_key)
    _authorize(broker, user, vhost, _UNBIND, binding)
    vhost.unbind(binding.source, binding.destination, binding.routing_key, binding.arguments)
    await until_committed(broker)
