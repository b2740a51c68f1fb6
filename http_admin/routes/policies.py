"""Policies and operator policies."""

from __future__ import annotations

from dataclasses import dataclass
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


async def _listed(hub: Broker, user: User, operator: bool, vhost: str | None, ask: List) -> Any:
    seen = [vhost_for(hub, user, vhost)] if vhost is not None else visible_vhosts(hub, user)
    names = {one.name for one in seen}
    found = [one for one in hub.policies if one.operator is operator and one.vhost in names]
    return await listed(found, ask, policy_row, lambda one: one.name)


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


@dataclass(frozen=True, slots=True)
class _Kind:
    """Policies and operator policies have the same routes; they differ in these."""

    path: str
    words: str
    operator: bool
    makers: tuple[str, ...]
    """Tags that may make and delete them, beside administrator."""
    effect: str


def _add_lists(kind: _Kind) -> None:
    path, words = kind.path, kind.words
    readers = [require_tag("policymaker", "monitoring")]
    rows = listing(PolicyRow)
    seen, of_one = f"{words} of every vhost the user may see.", f"{words} of one vhost."

    @router.get(path, response_model=rows, dependencies=readers, description=seen)
    async def list_all(hub: Hub, user: CurrentUser, ask: List) -> Any:
        return await _listed(hub, user, kind.operator, None, ask)

    @router.get(
        f"{path}/{{vhost:seg}}", response_model=rows, dependencies=readers, description=of_one
    )
    async def list_of_vhost(vhost: str, hub: Hub, user: CurrentUser, ask: List) -> Any:
        return await _listed(hub, user, kind.operator, vhost, ask)

    @router.get(
        f"{path}/{{vhost:seg}}/{{name:seg}}",
        response_model=PolicyRow,
        dependencies=readers,
        description=f"One of the {words.lower()}.",
    )
    def get_one(vhost: str, name: str, hub: Hub, user: CurrentUser) -> Row:
        return policy_row(_one(hub, user, vhost, name, kind.operator))


def _add_changes(kind: _Kind) -> None:
    where = f"{kind.path}/{{vhost:seg}}/{{name:seg}}"
    makers = [require_tag(*kind.makers)]

    @router.put(where, status_code=201, dependencies=makers, description=kind.effect)
    async def put_one(
        vhost: str, name: str, hub: Hub, user: CurrentUser, response: Response, body: PolicyBody
    ) -> None:
        held = vhost_for(hub, user, vhost)
        wanted = (body.pattern, body.definition, body.apply_to, body.priority, kind.operator)
        response.status_code = await _put(hub, Policy(held.name, name, *wanted))

    gone = f"Delete one of the {kind.words.lower()}."

    @router.delete(where, status_code=204, dependencies=makers, description=gone)
    async def delete_one(vhost: str, name: str, hub: Hub, user: CurrentUser) -> None:
        hub.policies.delete(_one(hub, user, vhost, name, kind.operator))
        await until_durable(hub)


for _kind in (
    _Kind(
        "/policies",
        "Policies",
        False,
        ("policymaker",),
        "Make or replace a policy; it takes effect at once on everything that it governs.",
    ),
    _Kind(
        "/operator-policies",
        "Operator policies",
        True,
        (),
        "Make or replace an operator policy: limits that other policies cannot lift.",
    ),
):
    _add_lists(_kind)
    _add_changes(_kind)
