"""Runtime parameters, of vhosts and of the whole broker, and the cluster's name."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from http_admin.auth import CurrentUser, Hub, require_tag, vhost_for, visible_vhosts
from http_admin.durable import until_durable
from http_admin.errors import ApiError, bad_request, not_found
from http_admin.listing import List, listed
from http_admin.routes.policies import PolicyBody
from http_admin.shapes import listing
from http_admin.views import Row
from leveret.broker import Broker, User
from leveret.broker.definitions import OPERATOR_POLICY, global_parameter_rows, parameter_rows
from leveret.broker.parameters import CLUSTER_NAME, GLOBAL, VHOST_LIMITS, require_not_own
from leveret.broker.policies import Policy

router = APIRouter(prefix="/api", tags=["parameters"])
LONGEST_NAME = 255


class ParameterBody(BaseModel):
    value: Any


class ParameterRow(ParameterBody):
    vhost: str
    component: str
    name: str


class GlobalParameterRow(ParameterBody):
    name: str


class ClusterNameBody(BaseModel):
    name: str = Field(min_length=1, max_length=LONGEST_NAME)


def _seen(hub: Broker, user: User) -> list[Row]:
    names = {vhost.name for vhost in visible_vhosts(hub, user)}
    return [row for row in parameter_rows(hub) if row["vhost"] in names]


def _name_of(row: Row) -> str:
    return str(row["name"])


@router.get(
    "/parameters", response_model=listing(ParameterRow), dependencies=[require_tag("policymaker")]
)
async def list_parameters(hub: Hub, user: CurrentUser, ask: List) -> Any:
    """Parameters of every vhost the user may see, operator policies and limits included."""
    return await listed(_seen(hub, user), ask, lambda row: row, _name_of)


@router.get(
    "/parameters/{component:seg}",
    response_model=listing(ParameterRow),
    dependencies=[require_tag("policymaker")],
)
async def list_component(component: str, hub: Hub, user: CurrentUser, ask: List) -> Any:
    """Parameters of one component."""
    rows = [row for row in _seen(hub, user) if row["component"] == component]
    return await listed(rows, ask, lambda row: row, _name_of)


@router.get(
    "/parameters/{component:seg}/{vhost:seg}",
    response_model=listing(ParameterRow),
    dependencies=[require_tag("policymaker")],
)
async def list_vhost_component(
    component: str, vhost: str, hub: Hub, user: CurrentUser, ask: List
) -> Any:
    """Parameters of one component in one vhost."""
    held = vhost_for(hub, user, vhost)
    rows = [
        row
        for row in parameter_rows(hub)
        if row["component"] == component and row["vhost"] == held.name
    ]
    return await listed(rows, ask, lambda row: row, _name_of)


def _one(hub: Broker, user: User, component: str, vhost: str, name: str) -> Row | None:
    held = vhost_for(hub, user, vhost)
    wanted = {"component": component, "vhost": held.name, "name": name}
    return next((row for row in parameter_rows(hub) if wanted.items() <= row.items()), None)


@router.get(
    "/parameters/{component:seg}/{vhost:seg}/{name:seg}",
    response_model=ParameterRow,
    dependencies=[require_tag("policymaker")],
)
def get_parameter(component: str, vhost: str, name: str, hub: Hub, user: CurrentUser) -> Row:
    """One parameter."""
    found = _one(hub, user, component, vhost, name)
    if found is None:
        raise not_found()
    return found


@router.put(
    "/parameters/{component:seg}/{vhost:seg}/{name:seg}",
    status_code=201,
    dependencies=[require_tag("policymaker")],
)
async def put_parameter(
    component: str,
    vhost: str,
    name: str,
    hub: Hub,
    user: CurrentUser,
    response: Response,
    body: ParameterBody,
) -> None:
    """Set a parameter. Limits of a vhost and operator policies take effect; others are kept."""
    _check_name(component)
    _check_name(name)
    require_not_own(component)
    existed = _one(hub, user, component, vhost, name) is not None
    _require_operator(user, component)
    if component == OPERATOR_POLICY:
        hub.policies.put(_operator_policy(vhost, name, body.value))
    else:
        hub.parameters.put(vhost, component, name, body.value)
    await until_durable(hub)
    response.status_code = 204 if existed else 201


def _check_name(name: str) -> None:
    if len(name.encode()) > LONGEST_NAME:
        raise bad_request(f"a name has at most {LONGEST_NAME} octets")


def _require_operator(user: User, component: str) -> None:
    """What holds a vhost's own people in bounds is not for them to lift."""
    if component in (OPERATOR_POLICY, VHOST_LIMITS) and "administrator" not in user.tags:
        raise ApiError(403, f"parameters of {component} need the tag administrator")


def _operator_policy(vhost: str, name: str, value: Any) -> Policy:
    try:
        body = PolicyBody.model_validate(value)
    except ValueError as error:
        raise bad_request(f"not an operator policy: {error}") from error
    return Policy(vhost, name, body.pattern, body.definition, body.apply_to, body.priority, True)


@router.delete(
    "/parameters/{component:seg}/{vhost:seg}/{name:seg}",
    status_code=204,
    dependencies=[require_tag("policymaker")],
)
async def delete_parameter(
    component: str, vhost: str, name: str, hub: Hub, user: CurrentUser
) -> None:
    """Remove a parameter."""
    require_not_own(component)
    if _one(hub, user, component, vhost, name) is None:
        raise not_found()
    _require_operator(user, component)
    policy = hub.policies.get(vhost, name, operator=True)
    if component != OPERATOR_POLICY:
        hub.parameters.delete(vhost, component, name)
    elif policy is not None:
        hub.policies.delete(policy)
    await until_durable(hub)


# Of the whole broker -----------------------------------------------------------------------------


@router.get(
    "/global-parameters", response_model=listing(GlobalParameterRow), dependencies=[require_tag()]
)
async def list_global_parameters(hub: Hub, ask: List) -> Any:
    """Parameters of the whole broker."""
    return await listed(global_parameter_rows(hub), ask, lambda row: row, _name_of)


@router.get(
    "/global-parameters/{name:seg}",
    response_model=GlobalParameterRow,
    dependencies=[require_tag()],
)
def get_global_parameter(name: str, hub: Hub) -> Row:
    """One parameter of the whole broker."""
    if (GLOBAL, GLOBAL, name) not in hub.parameters:
        raise not_found()
    return {"name": name, "value": hub.parameters.get(GLOBAL, GLOBAL, name)}


@router.put("/global-parameters/{name:seg}", status_code=201, dependencies=[require_tag()])
async def put_global_parameter(
    name: str, hub: Hub, response: Response, body: ParameterBody
) -> None:
    """Set a parameter of the whole broker."""
    _check_name(name)
    existed = (GLOBAL, GLOBAL, name) in hub.parameters
    hub.parameters.put(GLOBAL, GLOBAL, name, body.value)
    await until_durable(hub)
    response.status_code = 204 if existed else 201


@router.delete("/global-parameters/{name:seg}", status_code=204, dependencies=[require_tag()])
async def delete_global_parameter(name: str, hub: Hub) -> None:
    """Remove a parameter of the whole broker."""
    if (GLOBAL, GLOBAL, name) not in hub.parameters:
        raise not_found()
    hub.parameters.delete(GLOBAL, GLOBAL, name)
    await until_durable(hub)


@router.put("/cluster-name", status_code=204, dependencies=[require_tag()])
async def put_cluster_name(hub: Hub, body: ClusterNameBody) -> None:
    """Give the cluster a name."""
    hub.parameters.put(GLOBAL, GLOBAL, CLUSTER_NAME, body.name)
    await until_durable(hub)
