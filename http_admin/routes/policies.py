"""Policies and operator policies."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from leveret.broker import Broker, VirtualHost
from leveret.broker.definitions.export import policy_row
from leveret.broker.policies.policies import Policy
from leveret.http_admin.auth import AppBroker, CurrentUser, PathVhost, require_tag, visible_vhosts
from leveret.http_admin.commit import until_committed
from leveret.http_admin.errors import bad_request, not_found
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ListParams, ListQuery, list_rows
from leveret.http_admin.responses import CREATED, ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.schemas.common import listing
from leveret.http_admin.schemas.vhosts import PolicyRow

router = APIRouter(prefix="/api", tags=["policies"], responses=ERROR_RESPONSES)
MAX_NAME_BYTES = 255
Policies: Any = listing(PolicyRow)
_READERS = [require_tag("policymaker", "monitoring")]
_MAKERS = [require_tag("policymaker")]
_OPERATORS = [require_tag()]


class PolicyBody(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    pattern: str = Field(description="An RE2 pattern of the names that the policy applies to.")
    definition: dict[str, Any] = Field(description="Keys and values, such as max-length.")
    priority: int = Field(default=0, ge=-(1 << 31), lt=1 << 31)
    apply_to: str = Field(
        default="all",
        alias="apply-to",
        description="all, queues, exchanges, classic_queues, quorum_queues or streams.",
    )


async def _list(
    broker: Broker, vhosts: list[VirtualHost], operator: bool, query: ListQuery
) -> FastJsonResponse:
    names = {vhost.name for vhost in vhosts}
    policies = [p for p in broker.policies if p.operator is operator and p.vhost in names]
    return await list_rows(policies, query, policy_row, lambda policy: policy.name)


def _find(broker: Broker, vhost: VirtualHost, name: str, operator: bool) -> Policy:
    policy = broker.policies.get(vhost.name, name, operator)
    if policy is None:
        raise not_found()
    return policy


async def _put(
    broker: Broker, vhost: VirtualHost, name: str, body: PolicyBody, operator: bool
) -> int:
    """The status of the response."""
    if len(name.encode()) > MAX_NAME_BYTES:
        raise bad_request(f"a name must have at most {MAX_NAME_BYTES} bytes")
    fields = (body.pattern, body.definition, body.apply_to, body.priority)
    existed = broker.policies.get(vhost.name, name, operator) is not None
    broker.policies.put(Policy(vhost.name, name, *fields, operator))
    await until_committed(broker)
    return 204 if existed else 201


async def _delete(broker: Broker, vhost: VirtualHost, name: str, operator: bool) -> None:
    broker.policies.delete(_find(broker, vhost, name, operator))
    await until_committed(broker)


# Policies ----------------------------------------------------------------------------------------


@router.get("/policies", response_model=Policies, dependencies=_READERS)
async def list_policies(
    broker: AppBroker, user: CurrentUser, query: ListParams
) -> FastJsonResponse:
    """Policies of all vhosts that the user may access."""
    return await _list(broker, visible_vhosts(broker, user), False, query)


@router.get("/policies/{vhost:seg}", response_model=Policies, dependencies=_READERS)
async def list_vhost_policies(
    vhost: PathVhost, broker: AppBroker, query: ListParams
) -> FastJsonResponse:
    """Policies of one vhost."""
    return await _list(broker, [vhost], False, query)


@router.get("/policies/{vhost:seg}/{name:seg}", response_model=PolicyRow, dependencies=_READERS)
async def get_policy(vhost: PathVhost, name: str, broker: AppBroker) -> dict[str, Any]:
    """One policy."""
    return policy_row(_find(broker, vhost, name, False))


@router.put("/policies/{vhost:seg}/{name:seg}", dependencies=_MAKERS, **CREATED)
async def put_policy(
    vhost: PathVhost, name: str, broker: AppBroker, response: Response, body: PolicyBody
) -> None:
    """Create or replace a policy. It takes effect at once."""
    response.status_code = await _put(broker, vhost, name, body, False)


@router.delete("/policies/{vhost:seg}/{name:seg}", dependencies=_MAKERS, **NO_CONTENT)
async def delete_policy(vhost: PathVhost, name: str, broker: AppBroker) -> None:
    """Delete a policy."""
    await _delete(broker, vhost, name, False)


# Operator policies -------------------------------------------------------------------------------


@router.get("/operator-policies", response_model=Policies, dependencies=_READERS)
async def list_operator_policies(
    broker: AppBroker, user: CurrentUser, query: ListParams
) -> FastJsonResponse:
    """Operator policies of all vhosts that the user may access."""
    return await _list(broker, visible_vhosts(broker, user), True, query)


@router.get("/operator-policies/{vhost:seg}", response_model=Policies, dependencies=_READERS)
async def list_vhost_operator_policies(
    vhost: PathVhost, broker: AppBroker, query: ListParams
) -> FastJsonResponse:
    """Operator policies of one vhost."""
    return await _list(broker, [vhost], True, query)


@router.get(
    "/operator-policies/{vhost:seg}/{name:seg}", response_model=PolicyRow, dependencies=_READERS
)
async def get_operator_policy(vhost: PathVhost, name: str, broker: AppBroker) -> dict[str, Any]:
    """One operator policy."""
    return policy_row(_find(broker, vhost, name, True))


@router.put("/operator-policies/{vhost:seg}/{name:seg}", dependencies=_OPERATORS, **CREATED)
async def put_operator_policy(
    vhost: PathVhost, name: str, broker: AppBroker, response: Response, body: PolicyBody
) -> None:
    """Create or replace an operator policy: limits that no other policy can exceed."""
    response.status_code = await _put(broker, vhost, name, body, True)


@router.delete("/operator-policies/{vhost:seg}/{name:seg}", dependencies=_OPERATORS, **NO_CONTENT)
async def delete_operator_policy(vhost: PathVhost, name: str, broker: AppBroker) -> None:
    """Delete an operator policy."""
    await _delete(broker, vhost, name, True)
