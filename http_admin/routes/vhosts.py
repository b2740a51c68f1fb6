"""Virtual hosts and their limits."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from leveret.broker import Broker, VirtualHost
from leveret.broker.policies.parameters import (
    KNOWN_VHOST_LIMITS,
    LIMITS_NAME,
    VHOST_LIMITS,
    check_limits,
)
from leveret.http_admin.auth import AppBroker, CurrentUser, PathVhost, require_tag, visible_vhosts
from leveret.http_admin.commit import until_committed
from leveret.http_admin.errors import ApiError, bad_request, not_found
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ListParams, list_rows
from leveret.http_admin.responses import CREATED, ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.rows.vhosts import vhost_row
from leveret.http_admin.samples import Samples
from leveret.http_admin.schemas.common import listing
from leveret.http_admin.schemas.fields import LimitBody, Tags
from leveret.http_admin.schemas.vhosts import VhostLimits, VhostRow
from leveret.model.definitions import PermissionDefinition
from leveret.queues.spec import check_default_kind

router = APIRouter(prefix="/api", tags=["vhosts"], responses=ERROR_RESPONSES)
MAX_NAME_BYTES = 255
_ADMINISTRATOR = [require_tag()]


class VhostBody(BaseModel):
    description: str | None = None
    tags: Tags | None = None
    default_queue_type: str | None = Field(
        default=None,
        description="Type of new durable queues that name none: classic, quorum or stream.",
    )
    protected_from_deletion: bool | None = None
    tracing: bool | None = None


@router.get("/vhosts", response_model=listing(VhostRow))
async def list_vhosts(
    broker: AppBroker, user: CurrentUser, query: ListParams, samples: Samples
) -> FastJsonResponse:
    """Virtual hosts that the user may access."""
    traffic = broker.metrics.traffic()
    return await list_rows(
        visible_vhosts(broker, user),
        query,
        lambda vhost: vhost_row(broker, vhost, traffic, samples),
        lambda vhost: vhost.name,
    )


@router.get("/vhosts/{vhost:seg}")
async def get_vhost(vhost: PathVhost, broker: AppBroker, samples: Samples) -> VhostRow:
    """One virtual host."""
    return vhost_row(broker, vhost, broker.metrics.traffic(), samples)


@router.put("/vhosts/{vhost:seg}", dependencies=_ADMINISTRATOR, **CREATED)
async def put_vhost(
    vhost: str,
    broker: AppBroker,
    user: CurrentUser,
    response: Response,
    body: VhostBody | None = None,
) -> None:
    """Create a virtual host, or change its description and other fields; omitted fields stay.

    The user who creates a virtual host gets all permissions in it.
    """
    options = (body or VhostBody()).model_dump(exclude_none=True)
    if options.get("default_queue_type") in ("", "undefined"):
        del options["default_queue_type"]
    elif "default_queue_type" in options:
        check_default_kind(options["default_queue_type"])
    await broker.vhost_deletions.finished(vhost)
    existing = broker.vhosts.get(vhost)
    if existing is None:
        check_vhost_name(vhost)
        broker.add_vhost(vhost, options)
        broker.users.set_permission(PermissionDefinition(user.name, vhost, ".*", ".*", ".*"))
    else:
        broker.set_vhost_options(existing, {**existing.options, **options})
    await until_committed(broker)
    response.status_code = 201 if existing is None else 204


def check_vhost_name(name: str) -> None:
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        raise bad_request(f"a vhost name must have 1 to {MAX_NAME_BYTES} bytes")


@router.delete("/vhosts/{vhost:seg}", dependencies=_ADMINISTRATOR, **NO_CONTENT)
async def delete_vhost(vhost: str, broker: AppBroker) -> None:
    """Delete a virtual host with everything in it, and close its connections."""
    existing = broker.vhosts.get(vhost)
    if existing is None:
        raise not_found()
    if existing.options.get("protected_from_deletion"):
        raise ApiError(412, f"vhost '{vhost}' is protected from deletion")
    await broker.vhost_deletions.run(vhost)
    await until_committed(broker)


@router.post("/vhosts/{vhost:seg}/deletion/protection", dependencies=_ADMINISTRATOR, **NO_CONTENT)
async def protect_vhost(vhost: PathVhost, broker: AppBroker) -> None:
    """Protect a virtual host from deletion."""
    await _set_protection(broker, vhost, True)


@router.delete("/vhosts/{vhost:seg}/deletion/protection", dependencies=_ADMINISTRATOR, **NO_CONTENT)
async def unprotect_vhost(vhost: PathVhost, broker: AppBroker) -> None:
    """Allow a protected virtual host to be deleted again."""
    await _set_protection(broker, vhost, False)


async def _set_protection(broker: Broker, vhost: VirtualHost, is_protected: bool) -> None:
    options = {**vhost.options, "protected_from_deletion": is_protected}
    broker.set_vhost_options(vhost, options)
    await until_committed(broker)


@router.post("/vhosts/{vhost:seg}/start/{node:seg}", dependencies=_ADMINISTRATOR, **NO_CONTENT)
async def start_vhost(vhost: PathVhost, node: str, broker: AppBroker) -> None:
    """Does nothing: virtual hosts always run."""
    if node != broker.settings.node_name:
        raise not_found()


# Limits ------------------------------------------------------------------------------------------


def _limit_rows(broker: Broker, vhosts: Iterable[VirtualHost]) -> list[VhostLimits]:
    limits = [(vhost.name, broker.parameters.vhost_limits(vhost.name)) for vhost in vhosts]
    return [{"vhost": name, "value": dict(values)} for name, values in limits if values]


@router.get("/vhost-limits")
async def list_vhost_limits(broker: AppBroker, user: CurrentUser) -> list[VhostLimits]:
    """Limits of all virtual hosts that have any."""
    return _limit_rows(broker, visible_vhosts(broker, user))


@router.get("/vhost-limits/{vhost:seg}")
async def get_vhost_limits(vhost: PathVhost, broker: AppBroker) -> list[VhostLimits]:
    """Limits of one virtual host."""
    return _limit_rows(broker, [vhost])


@router.put("/vhost-limits/{vhost:seg}/{limit:seg}", dependencies=_ADMINISTRATOR, **NO_CONTENT)
async def put_vhost_limit(vhost: PathVhost, limit: str, broker: AppBroker, body: LimitBody) -> None:
    """Limit connections (max-connections) or queues (max-queues)."""
    check_limits({limit: body.value}, KNOWN_VHOST_LIMITS)
    limits = {**broker.parameters.vhost_limits(vhost.name), limit: body.value}
    broker.parameters.put(vhost.name, VHOST_LIMITS, LIMITS_NAME, limits)
    await until_committed(broker)


@router.delete("/vhost-limits/{vhost:seg}/{limit:seg}", dependencies=_ADMINISTRATOR, **NO_CONTENT)
async def delete_vhost_limit(vhost: PathVhost, limit: str, broker: AppBroker) -> None:
    """Remove a limit."""
    limits = dict(broker.parameters.vhost_limits(vhost.name))
    limits.pop(limit, None)
    if limits:
        broker.parameters.put(vhost.name, VHOST_LIMITS, LIMITS_NAME, limits)
    else:
        broker.parameters.delete(vhost.name, VHOST_LIMITS, LIMITS_NAME)
    await until_committed(broker)
