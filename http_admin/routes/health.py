"""Health checks: 200 if the check passes, 503 with the reason if not."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Response

from leveret.broker import Broker, User
from leveret.http_admin.auth import AppBroker, CurrentUser, PathVhost
from leveret.http_admin.context import Context
from leveret.http_admin.errors import not_found
from leveret.http_admin.responses import ERROR_RESPONSES
from leveret.http_admin.routes.operations import alarms_for
from leveret.http_admin.schemas.broker import Health
from leveret.model.store import StoreState

_FAILED: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "Failed."}}
router = APIRouter(prefix="/api", tags=["health"], responses=ERROR_RESPONSES | _FAILED)
_DAYS = {"days": 1, "weeks": 7, "months": 31, "years": 366}


def _failed(response: Response, reason: str) -> Health:
    response.status_code = 503
    return {"status": "failed", "reason": reason}


@router.get("/health/checks/alarms")
async def check_alarms(broker: AppBroker, user: CurrentUser, response: Response) -> Health:
    """Fails if an alarm is raised in the cluster."""
    return _check_alarms(broker, user, response)


@router.get("/health/checks/local-alarms")
async def check_local_alarms(broker: AppBroker, user: CurrentUser, response: Response) -> Health:
    """Fails if an alarm is raised on this node."""
    return _check_alarms(broker, user, response)


def _check_alarms(broker: Broker, user: User, response: Response) -> Health:
    raised = alarms_for(broker, user)
    if not raised:
        return {"status": "ok"}
    health = _failed(response, "; ".join(raised.values()))
    node = broker.settings.node_name
    health["alarms"] = [
        {"node": node, "resource": name, "reason": reason} for name, reason in raised.items()
    ]
    return health


@router.get("/health/checks/virtual-hosts")
async def check_virtual_hosts(broker: AppBroker, user: CurrentUser, response: Response) -> Health:
    """Fails if a virtual host is not running. They run as long as the broker does."""
    return _check_store(broker, response)


@router.get("/health/checks/is-in-service")
async def check_in_service(broker: AppBroker, user: CurrentUser, response: Response) -> Health:
    """Fails if the broker does not accept work."""
    return _check_store(broker, response)


@router.get("/health/checks/ready-to-serve-clients")
async def check_ready(broker: AppBroker, user: CurrentUser, response: Response) -> Health:
    """Fails if the broker does not accept work from clients."""
    return _check_store(broker, response)


@router.get("/health/checks/metadata-store/initialized")
async def check_metadata_store(broker: AppBroker, user: CurrentUser, response: Response) -> Health:
    """Fails if the store is not open."""
    return _check_store(broker, response)


def _check_store(broker: Broker, response: Response) -> Health:
    state = broker.store.state
    if state is StoreState.RUNNING:
        return {"status": "ok"}
    return _failed(response, f"the store is {state.value}")


@router.get("/health/checks/below-node-connection-limit")
async def check_connection_limit(
    broker: AppBroker, user: CurrentUser, response: Response
) -> Health:
    """Fails if no further connection would be accepted."""
    limit, current = broker.settings.connection_max, len(broker.connections)
    if limit and current >= limit:
        return _failed(response, f"connection_max {limit} is reached")
    return {"status": "ok", "current": current, "limit": limit or "infinity"}


@router.get("/health/checks/node-is-quorum-critical")
@router.get("/health/checks/node-is-mirror-sync-critical")
async def check_critical(user: CurrentUser) -> Health:
    """Fails if queues would lose their majority without this node: never on a single node."""
    return {"status": "ok", "reason": "single node cluster"}


@router.get("/health/checks/certificate-expiration/{within}/{unit}")
async def check_certificates(
    within: Annotated[int, Path(ge=1)],
    unit: Literal["days", "weeks", "months", "years"],
    broker: AppBroker,
    user: CurrentUser,
    context: Context,
    response: Response,
) -> Health:
    """Fails if the TLS certificate expires within this time. Passes without TLS listeners."""
    expires = context.certificate_expires()
    if expires is None:
        return {"status": "ok"}
    days = (expires - broker.clock.wall_ms() / 1000) / 86_400
    if days < within * _DAYS[unit]:
        return _failed(response, f"the certificate expires in {days:.1f} days")
    return {"status": "ok"}


@router.get("/health/checks/port-listener/{port}")
async def check_port(port: int, user: CurrentUser, context: Context, response: Response) -> Health:
    """Fails if there is no listener on this port."""
    ports = [listener.port for listener in context.listeners]
    if port in ports:
        return {"status": "ok", "port": port}
    return {**_failed(response, "No active listener"), "missing": port, "ports": ports}


@router.get("/health/checks/protocol-listener/{protocol:seg}")
async def check_protocol(
    protocol: str, user: CurrentUser, context: Context, response: Response
) -> Health:
    """Fails if there is no listener for this protocol. `amqp091` means `amqp`."""
    protocols = sorted({listener.protocol for listener in context.listeners})
    name = {"amqp091": "amqp", "amqp0.9.1": "amqp"}.get(protocol, protocol)
    if name in protocols:
        return {"status": "ok", "protocol": protocol}
    failed = _failed(response, "No active listener")
    return {**failed, "missing": protocol, "protocols": protocols}


@router.get("/healthchecks/node")
async def node_health(broker: AppBroker, user: CurrentUser, response: Response) -> Health:
    """RabbitMQ's older check of this node: fails if an alarm is raised."""
    return _check_alarms(broker, user, response)


@router.get("/healthchecks/node/{name:seg}")
async def named_node_health(
    name: str, broker: AppBroker, user: CurrentUser, response: Response
) -> Health:
    """The same check for a node by its name."""
    if name != broker.settings.node_name:
        raise not_found()
    return _check_alarms(broker, user, response)


@router.get("/aliveness-test/{vhost:seg}")
async def aliveness_test(vhost: PathVhost, broker: AppBroker, response: Response) -> Health:
    """Fails if the virtual host does not exist or the broker does not accept work."""
    return _check_store(broker, response)
