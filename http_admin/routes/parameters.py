"""Runtime parameters of vhosts and of the whole broker, and the name of the cluster."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from leveret.broker import Broker, User, VirtualHost
from leveret.broker.definitions.export import OPERATOR_POLICY, global_parameter_rows, parameter_rows
from leveret.broker.policies.parameters import (
    CLUSTER_NAME,
    GLOBAL,
    VHOST_LIMITS,
    require_user_component,
)
from leveret.broker.policies.policies import Policy
from leveret.http_admin.auth import AppBroker, CurrentUser, PathVhost, require_tag, visible_vhosts
from leveret.http_admin.commit import until_committed
from leveret.http_admin.errors import ApiError, bad_request, not_found
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ListParams, ListQuery, list_rows
from leveret.http_admin.responses import CREATED, ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.routes.policies import PolicyBody
from leveret.http_admin.schemas.common import listing
from leveret.http_admin.schemas.vhosts import GlobalParameterRow, ParameterRow

router = APIRouter(prefix="/api", tags=["parameters"], responses=ERROR_RESPONSES)
MAX_NAME_BYTES = 255
Parameters: Any = listing(ParameterRow)
_POLICYMAKER = [require_tag("policymaker")]
_ADMINISTRATOR = [require_tag()]


class ParameterBody(BaseModel):
    value: Any


class ClusterNameBody(BaseModel):
    name: str = Field(min_length=1, max_length=MAX_NAME_BYTES)


def _rows(broker: Broker, vhosts: list[VirtualHost]) -> list[dict[str, Any]]:
    names = {vhost.name for vhost in vhosts}
    return [row for row in parameter_rows(broker) if row["vhost"] in names]


async def _list(rows: list[dict[str, Any]], query: ListQuery) -> FastJsonResponse:
    return await list_rows(rows, query, lambda row: row, lambda row: str(row["name"]))


@router.get("/parameters", response_model=Parameters, dependencies=_POLICYMAKER)
async def list_parameters(
    broker: AppBroker, user: CurrentUser, query: ListParams
) -> FastJsonResponse:
    """Parameters of all vhosts that the user may access, with operator policies and limits."""
    return await _list(_rows(broker, visible_vhosts(broker, user)), query)


@router.get("/parameters/{component:seg}", response_model=Parameters, dependencies=_POLICYMAKER)
async def list_component(
    component: str, broker: AppBroker, user: CurrentUser, query: ListParams
) -> FastJsonResponse:
    """Parameters of one component."""
    rows = _rows(broker, visible_vhosts(broker, user))
    return await _list([row for row in rows if row["component"] == component], query)


@router.get(
    "/parameters/{component:seg}/{vhost:seg}",
    response_model=Parameters,
    dependencies=_POLICYMAKER,
)
async def list_vhost_component(
    component: str, vhost: PathVhost, broker: AppBroker, query: ListParams
) -> FastJsonResponse:
    """Parameters of one component in one vhost."""
    rows = _rows(broker, [vhost])
    return await _list([row for row in rows if row["component"] == component], query)


def _maybe_find(
    broker: Broker, component: str, vhost: VirtualHost, name: str
) -> dict[str, Any] | None:
    key = {"component": component, "vhost": vhost.name, "name": name}
    return next((row for row in parameter_rows(broker) if key.items() <= row.items()), None)


@router.get(
    "/parameters/{component:seg}/{vhost:seg}/{name:seg}",
    response_model=ParameterRow,
    dependencies=_POLICYMAKER,
)
async def get_parameter(
    component: str, vhost: PathVhost, name: str, broker: AppBroker
) -> dict[str, Any]:
    """One parameter."""
    row = _maybe_find(broker, component, vhost, name)
    if row is None:
        raise not_found()
    return row


@router.put(
    "/parameters/{component:seg}/{vhost:seg}/{name:seg}", dependencies=_POLICYMAKER, **CREATED
)
async def put_parameter(
    component: str,
    vhost: PathVhost,
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    response: Response,
    body: ParameterBody,
) -> None:
    """Set a parameter. Vhost limits and operator policies take effect; others are only stored."""
    _check_name(component)
    _check_name(name)
    require_user_component(component)
    existed = _maybe_find(broker, component, vhost, name) is not None
    _require_operator(user, component)
    if component == OPERATOR_POLICY:
        broker.policies.put(_operator_policy(vhost.name, name, body.value))
    else:
        broker.parameters.put(vhost.name, component, name, body.value)
    await until_committed(broker)
    response.status_code = 204 if existed else 201


def _check_name(name: str) -> None:
    if len(name.encode()) > MAX_NAME_BYTES:
        raise bad_request(f"a name must have at most {MAX_NAME_BYTES} bytes")


def _require_operator(user: User, component: str) -> None:
    """Limits of a vhost are not changed by the users they limit."""
    if component in (OPERATOR_POLICY, VHOST_LIMITS) and "administrator" not in user.tags:
        raise ApiError(403, f"parameters of {component} need the tag administrator")


def _operator_policy(vhost: str, name: str, value: Any) -> Policy:
    try:
        body = PolicyBody.model_validate(value)
    except ValueError as error:
        raise bad_request(f"not an operator policy: {error}") from error
    return Policy(vhost, name, body.pattern, body.definition, body.apply_to, body.priority, True)


@router.delete(
    "/parameters/{component:seg}/{vhost:seg}/{name:seg}", dependencies=_POLICYMAKER, **NO_CONTENT
)
async def delete_parameter(
    component: str, vhost: PathVhost, name: str, broker: AppBroker, user: CurrentUser
) -> None:
    """Delete a parameter."""
    require_user_component(component)
    if _maybe_find(broker, component, vhost, name) is None:
        raise not_found()
    _require_operator(user, component)
    policy = broker.policies.get(vhost.name, name, operator=True)
    if component != OPERATOR_POLICY:
        broker.parameters.delete(vhost.name, component, name)
    elif policy is not None:
        broker.policies.delete(policy)
    await until_committed(broker)


# Parameters of the whole broker ------------------------------------------------------------------


@router.get(
    "/global-parameters",
    response_model=listing(GlobalParameterRow),
    dependencies=_ADMINISTRATOR,
)
async def list_global_parameters(broker: AppBroker, query: ListParams) -> FastJsonResponse:
    """Parameters of the whole broker."""
    return await _list(global_parameter_rows(broker), query)


@router.get("/global-parameters/{name:seg}", dependencies=_ADMINISTRATOR)
async def get_global_parameter(name: str, broker: AppBroker) -> GlobalParameterRow:
    """One parameter of the whole broker."""
    if (GLOBAL, GLOBAL, name) not in broker.parameters:
        raise not_found()
    return {"name": name, "value": broker.parameters.get(GLOBAL, GLOBAL, name)}


@router.put("/global-parameters/{name:seg}", dependencies=_ADMINISTRATOR, **CREATED)
async def put_global_parameter(
    name: str, broker: AppBroker, response: Response, body: ParameterBody
) -> None:
    """Set a parameter of the whole broker."""
    _check_name(name)
    existed = (GLOBAL, GLOBAL, name) in broker.parameters
    broker.parameters.put(GLOBAL, GLOBAL, name, body.value)
    await until_committed(broker)
    response.status_code = 204 if existed else 201


@router.delete("/global-parameters/{name:seg}", dependencies=_ADMINISTRATOR, **NO_CONTENT)
async def delete_global_parameter(name: str, broker: AppBroker) -> None:
    """Delete a parameter of the whole broker."""
    if (GLOBAL, GLOBAL, name) not in broker.parameters:
        raise not_found()
    broker.parameters.delete(GLOBAL, GLOBAL, name)
    await until_committed(broker)


@router.put("/cluster-name", dependencies=_ADMINISTRATOR, **NO_CONTENT)
async def put_cluster_name(broker: AppBroker, body: ClusterNameBody) -> None:
    """Set the name of the cluster."""
    broker.parameters.put(GLOBAL, GLOBAL, CLUSTER_NAME, body.name)
    await until_committed(broker)
