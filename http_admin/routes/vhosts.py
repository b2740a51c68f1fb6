"""Virtual hosts and their limits."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from http_admin.auth import CurrentUser, Hub, require_tag, vhost_for, visible_vhosts
from http_admin.durable import until_durable
from http_admin.errors import ApiError, bad_request, not_found
from http_admin.fields import LimitBody, Tags
from http_admin.listing import List, listed
from http_admin.samples import SampleRange, Samples
from http_admin.shapes import MessageStats, OctetRates, QueueTotals, listing
from http_admin.shapes_definitions import VhostMetadata
from http_admin.views import Row, lengths, message_stats, octet_rates
from leveret.broker import Broker, VirtualHost
from leveret.broker.metrics import VHOST_FIELDS, Octets, vhost_values
from leveret.broker.parameters import KNOWN_VHOST_LIMITS, LIMITS_NAME, VHOST_LIMITS, check_limits
from leveret.model.store import PermissionDefinition
from queues.spec import check_default_kind

router = APIRouter(prefix="/api", tags=["vhosts"])
LONGEST_NAME = 255


class VhostBody(BaseModel):
    description: str | None = None
    tags: Tags | None = None
    default_queue_type: str | None = Field(
        default=None,
        description="Type of new durable queues that name none: classic, quorum or stream.",
    )
    protected_from_deletion: bool | None = None
    tracing: bool | None = None


class VhostRow(QueueTotals, OctetRates):
    name: str
    description: str
    tags: list[str]
    default_queue_type: str
    protected_from_deletion: bool
    metadata: VhostMetadata
    tracing: bool
    cluster_state: dict[str, str]
    message_stats: MessageStats | None = None


def vhost_row(
    hub: Broker, vhost: VirtualHost, octets: Octets, ask: SampleRange | None = None
) -> Row:
    options = vhost.options
    values = vhost_values(vhost, octets)
    of = dict(zip(VHOST_FIELDS, values, strict=True))
    series = hub.metrics.vhosts.get(vhost)
    metadata: Row = {
        "description": options.get("description", ""),
        "tags": options.get("tags", []),
        "default_queue_type": options.get("default_queue_type", "classic"),
    }
    row: Row = {
        "name": vhost.name,
        **metadata,
        "protected_from_deletion": options.get("protected_from_deletion", False),
        "metadata": metadata,
        "tracing": options.get("tracing", False),
        "cluster_state": {hub.settings.node_name: "running"},
        **lengths(of["messages_ready"], of["messages_unacknowledged"], series, VHOST_FIELDS, ask),
        "recv_oct": of["recv_oct"],
        "send_oct": of["send_oct"],
        **octet_rates(series, ask, VHOST_FIELDS.index("recv_oct")),
    }
    stats = message_stats(VHOST_FIELDS, values, series, ask)
    if stats:
        row["message_stats"] = stats
    return row


@router.get("/vhosts", response_model=listing(VhostRow))
async def list_vhosts(hub: Hub, user: CurrentUser, ask: List, samples: Samples) -> Any:
    """Virtual hosts the user may see."""
    octets = hub.metrics.octets()
    return await listed(
        visible_vhosts(hub, user),
        ask,
        lambda one: vhost_row(hub, one, octets, samples),
        lambda one: one.name,
    )


@router.get("/vhosts/{vhost:seg}", response_model=VhostRow)
def get_vhost(vhost: str, hub: Hub, user: CurrentUser, samples: Samples) -> Row:
    """One virtual host."""
    return vhost_row(hub, vhost_for(hub, user, vhost), hub.metrics.octets(), samples)


@router.put("/vhosts/{vhost:seg}", status_code=201, dependencies=[require_tag()])
async def put_vhost(
    vhost: str, hub: Hub, user: CurrentUser, response: Response, body: VhostBody | None = None
) -> None:
    """Make a virtual host, or change its description and the like; fields left out stay.

    Whoever makes one may do everything in it.
    """
    given = (body or VhostBody()).model_dump(exclude_none=True)
    if given.get("default_queue_type") in ("", "undefined"):
        del given["default_queue_type"]
    elif "default_queue_type" in given:
        check_default_kind(given["default_queue_type"])
    found = hub.vhosts.get(vhost)
    if found is None:
        check_vhost_name(vhost)
        hub.add_vhost(vhost, given)
        hub.users.set_permission(PermissionDefinition(user.name, vhost, ".*", ".*", ".*"))
    else:
        hub.set_vhost_options(found, {**found.options, **given})
    await until_durable(hub)
    response.status_code = 201 if found is None else 204


def check_vhost_name(name: str) -> None:
    if not name or len(name.encode()) > LONGEST_NAME:
        raise bad_request(f"a vhost's name has 1 to {LONGEST_NAME} octets")


@router.delete("/vhosts/{vhost:seg}", status_code=204, dependencies=[require_tag()])
async def delete_vhost(vhost: str, hub: Hub) -> None:
    """Delete a virtual host with everything in it; its clients are disconnected."""
    found = hub.vhosts.get(vhost)
    if found is None:
        raise not_found()
    if found.options.get("protected_from_deletion"):
        raise ApiError(412, f"vhost '{vhost}' is protected from deletion")
    hub.delete_vhost(vhost)
    await until_durable(hub)


@router.post(
    "/vhosts/{vhost:seg}/deletion/protection", status_code=204, dependencies=[require_tag()]
)
async def protect_vhost(vhost: str, hub: Hub, user: CurrentUser) -> None:
    """Refuse to delete this virtual host from now on."""
    await _protect(hub, vhost_for(hub, user, vhost), True)


@router.delete(
    "/vhosts/{vhost:seg}/deletion/protection", status_code=204, dependencies=[require_tag()]
)
async def unprotect_vhost(vhost: str, hub: Hub, user: CurrentUser) -> None:
    """Let this virtual host be deleted again."""
    await _protect(hub, vhost_for(hub, user, vhost), False)


async def _protect(hub: Broker, vhost: VirtualHost, protected: bool) -> None:
    hub.set_vhost_options(vhost, {**vhost.options, "protected_from_deletion": protected})
    await until_durable(hub)


@router.post("/vhosts/{vhost:seg}/start/{node:seg}", status_code=204, dependencies=[require_tag()])
def start_vhost(vhost: str, node: str, hub: Hub, user: CurrentUser) -> None:
    """Virtual hosts always run: nothing to be done."""
    vhost_for(hub, user, vhost)
    if node != hub.settings.node_name:
        raise not_found()


# Limits ------------------------------------------------------------------------------------------


class VhostLimits(BaseModel):
    vhost: str
    value: dict[str, int] = Field(description="max-connections and max-queues; -1 is no limit.")


def _limits(hub: Broker, vhosts: list[VirtualHost]) -> list[Row]:
    found = [(vhost.name, hub.parameters.vhost_limits(vhost.name)) for vhost in vhosts]
    return [{"vhost": name, "value": dict(limits)} for name, limits in found if limits]


@router.get("/vhost-limits", response_model=list[VhostLimits])
def list_vhost_limits(hub: Hub, user: CurrentUser) -> list[Row]:
    """Limits of every virtual host that has any."""
    return _limits(hub, visible_vhosts(hub, user))


@router.get("/vhost-limits/{vhost:seg}", response_model=list[VhostLimits])
def get_vhost_limits(vhost: str, hub: Hub, user: CurrentUser) -> list[Row]:
    """Limits of one virtual host."""
    return _limits(hub, [vhost_for(hub, user, vhost)])


@router.put("/vhost-limits/{vhost:seg}/{limit:seg}", status_code=204, dependencies=[require_tag()])
async def put_vhost_limit(
    vhost: str, limit: str, hub: Hub, user: CurrentUser, body: LimitBody
) -> None:
    """Limit connections (max-connections) or queues (max-queues)."""
    held = vhost_for(hub, user, vhost)
    check_limits({limit: body.value}, KNOWN_VHOST_LIMITS)
    limits = {**hub.parameters.vhost_limits(held.name), limit: body.value}
    hub.parameters.put(held.name, VHOST_LIMITS, LIMITS_NAME, limits)
    await until_durable(hub)


@router.delete(
    "/vhost-limits/{vhost:seg}/{limit:seg}", status_code=204, dependencies=[require_tag()]
)
async def delete_vhost_limit(vhost: str, limit: str, hub: Hub, user: CurrentUser) -> None:
    """Lift a limit."""
    held = vhost_for(hub, user, vhost)
    limits = dict(hub.parameters.vhost_limits(held.name))
    limits.pop(limit, None)
    if limits:
        hub.parameters.put(held.name, VHOST_LIMITS, LIMITS_NAME, limits)
    else:
        hub.parameters.delete(held.name, VHOST_LIMITS, LIMITS_NAME)
    await until_durable(hub)
