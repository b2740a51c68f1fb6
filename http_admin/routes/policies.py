"""Policies and operator policies."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from http_admin.auth import CurrentUser, Hub, require_tag, vhost_for, visible_vhosts
from http_admin.durable import until_durable
from http_admin.errors import bad_request, not_found
from http_admin.listing import List, listed
from http_admin.shapes import listing
from http_admin.views import Row
from leveret.broker import Broker, User
from leveret.broker.definitions import policy_row
from leveret.broker.policies import Policy

router = APIRouter(prefix="/api", tags=["policies"])
LONGEST_NAME = 255


class PolicyBody(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    pattern: str = Field(description="Which names it governs, as an RE2 pattern.")
    definition: dict[str, Any] = Field(description="What it asks for, such as max-length.")
    priority: int = Field(default=0, ge=-(1 << 31), lt=1 << 31)
    apply_to: str = Field(
        default="all",
        alias="apply-to",
        description="all, queues, exchanges, classic_queues, quorum_queues or streams.",
    )


class PolicyRow(PolicyBody):
    vhost: str
    name: str


def _check_name(name: str) -> None:
    if len(name.encode()) > LONGEST_NAME:
        raise bad_request(f"a name has at most {LONGEST_NAME} octets")


# Policies ----------------------------------------------------------------------------------------


def _listed(hub: Broker, user: User, operator: bool, vhost: str | None, ask: List) -> Any:
    seen = [vhost_for(hub, user, vhost)] if vhost is not None else visible_vhosts(hub, user)
    names = {one.name for one in seen}
    found = [one for one in hub.policies if one.operator is operator and one.vhost in names]
    return listed(found, ask, policy_row, lambda one: one.name)


def _one(hub: Broker, user: User, vhost: str, name: str, operator: bool) -> Policy:
    found = hub.policies.get(vhost_for(hub, user, vhost).name, name, operator)
    if found is None:
        raise not_found()
    return found


async def _put(hub: Broker, policy: Policy) -> int:
    _check_name(policy.name)
    existed = hub.policies.get(policy.vhost, policy.name, policy.operator) is not None
    hub.policies.put(policy)
    await until_durable(hub)
    return 204 if existed else 201


def _policy(vhost: str, name: str, body: PolicyBody, operator: bool) -> Policy:
    return Policy(
        vhost, name, body.pattern, body.definition, body.apply_to, body.priority, operator
    )


@router.get(
    "/policies",
    response_model=listing(PolicyRow),
    dependencies=[require_tag("policymaker", "monitoring")],
)
def list_policies(hub: Hub, user: CurrentUser, ask: List) -> Any:
    """Policies of every vhost the user may see."""
    return _listed(hub, user, False, None, ask)


@router.get(
    "/policies/{vhost:seg}",
    response_model=listing(PolicyRow),
    dependencies=[require_tag("policymaker", "monitoring")],
)
def list_vhost_policies(vhost: str, hub: Hub, user: CurrentUser, ask: List) -> Any:
    """Policies of one vhost."""
    return _listed(hub, user, False, vhost, ask)


@router.get(
    "/policies/{vhost:seg}/{name:seg}",
    response_model=PolicyRow,
    dependencies=[require_tag("policymaker", "monitoring")],
)
def get_policy(vhost: str, name: str, hub: Hub, user: CurrentUser) -> Row:
    """One policy."""
    return policy_row(_one(hub, user, vhost, name, False))


@router.put(
    "/policies/{vhost:seg}/{name:seg}",
    status_code=201,
    dependencies=[require_tag("policymaker")],
)
async def put_policy(
    vhost: str, name: str, hub: Hub, user: CurrentUser, response: Response, body: PolicyBody
) -> None:
    """Make or replace a policy; it takes effect at once on everything that it governs."""
    held = vhost_for(hub, user, vhost)
    response.status_code = await _put(hub, _policy(held.name, name, body, False))


@router.delete(
    "/policies/{vhost:seg}/{name:seg}",
    status_code=204,
    dependencies=[require_tag("policymaker")],
)
async def delete_policy(vhost: str, name: str, hub: Hub, user: CurrentUser) -> None:
    """Delete a policy."""
    hub.policies.delete(_one(hub, user, vhost, name, False))
    await until_durable(hub)


# Operator policies -------------------------------------------------------------------------------


@router.get(
    "/operator-policies",
    response_model=listing(PolicyRow),
    dependencies=[require_tag("policymaker", "monitoring")],
)
def list_operator_policies(hub: Hub, user: CurrentUser, ask: List) -> Any:
    """Operator policies of every vhost the user may see."""
    return _listed(hub, user, True, None, ask)


@router.get(
    "/operator-policies/{vhost:seg}",
    response_model=listing(PolicyRow),
    dependencies=[require_tag("policymaker", "monitoring")],
)
def list_vhost_operator_policies(vhost: str, hub: Hub, user: CurrentUser, ask: List) -> Any:
    """Operator policies of one vhost."""
    return _listed(hub, user, True, vhost, ask)


@router.get(
    "/operator-policies/{vhost:seg}/{name:seg}",
    response_model=PolicyRow,
    dependencies=[require_tag("policymaker", "monitoring")],
)
def get_operator_policy(vhost: str, name: str, hub: Hub, user: CurrentUser) -> Row:
    """One operator policy."""
    return policy_row(_one(hub, user, vhost, name, True))


@router.put(
    "/operator-policies/{vhost:seg}/{name:seg}", status_code=201, dependencies=[require_tag()]
)
async def put_operator_policy(
    vhost: str, name: str, hub: Hub, user: CurrentUser, response: Response, body: PolicyBody
) -> None:
    """Make or replace an operator policy: limits that other policies cannot lift."""
    held = vhost_for(hub, user, vhost)
    response.status_code = await _put(hub, _policy(held.name, name, body, True))


@router.delete(
    "/operator-policies/{vhost:seg}/{name:seg}", status_code=204, dependencies=[require_tag()]
)
async def delete_operator_policy(vhost: str, name: str, hub: Hub, user: CurrentUser) -> None:
    """Delete an operator policy."""
    hub.policies.delete(_one(hub, user, vhost, name, True))
    await until_durable(hub)
