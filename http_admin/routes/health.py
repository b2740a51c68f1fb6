"""Health checks: 200 when all is well, 503 with the reason when not."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from http_admin.answers import JsonAnswer
from http_admin.auth import CurrentUser, Hub, vhost_for
from http_admin.errors import not_found
from http_admin.routes.operations import alarms_for
from http_admin.surroundings import Around
from leveret.broker import Broker, User
from leveret.model.store import StoreState


class RaisedAlarm(BaseModel):
    node: str
    resource: str
    reason: str


class Health(BaseModel):
    status: Literal["ok", "failed"]
    reason: str | None = None
    alarms: list[RaisedAlarm] | None = None
    current: int | None = Field(default=None, description="Open connections.")
    limit: int | str | None = None
    port: int | None = None
    ports: list[int] | None = None
    protocol: str | None = None
    protocols: list[str] | None = None
    missing: int | str | None = Field(default=None, description="The port or protocol asked for.")


_FAILED: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "Not well."}}
router = APIRouter(prefix="/api", tags=["health"], responses=_FAILED)


_DAYS = {"days": 1, "weeks": 7, "months": 31, "years": 366}


def _ok(**more: Any) -> JsonAnswer:
    return JsonAnswer({"status": "ok", **more})


def _failed(reason: str, **more: Any) -> JsonAnswer:
    return JsonAnswer({"status": "failed", "reason": reason, **more}, 503)


@router.get("/health/checks/alarms", response_model=Health)
def check_alarms(hub: Hub, user: CurrentUser) -> JsonAnswer:
    """Is no alarm raised in the cluster?"""
    return _alarms(hub, user)


@router.get("/health/checks/local-alarms", response_model=Health)
def check_local_alarms(hub: Hub, user: CurrentUser) -> JsonAnswer:
    """Is no alarm raised on this node?"""
    return _alarms(hub, user)


def _alarms(hub: Broker, user: User) -> JsonAnswer:
    raised = alarms_for(hub, user)
    if not raised:
        return _ok()
    node = hub.settings.node_name
    rows = [{"node": node, "resource": name, "reason": why} for name, why in raised.items()]
    return _failed("; ".join(raised.values()), alarms=rows)


@router.get("/health/checks/virtual-hosts", response_model=Health)
def check_virtual_hosts(hub: Hub, user: CurrentUser) -> JsonAnswer:
    """Are all virtual hosts running? They run or stop with the broker."""
    return _service(hub)


@router.get("/health/checks/is-in-service", response_model=Health)
def check_in_service(hub: Hub, user: CurrentUser) -> JsonAnswer:
    """Does the broker take work?"""
    return _service(hub)


@router.get("/health/checks/ready-to-serve-clients", response_model=Health)
def check_ready(hub: Hub, user: CurrentUser) -> JsonAnswer:
    """Does the broker take work from clients?"""
    return _service(hub)


@router.get("/health/checks/metadata-store/initialized", response_model=Health)
def check_metadata_store(hub: Hub, user: CurrentUser) -> JsonAnswer:
    """Is the store open?"""
    return _service(hub)


def _service(hub: Broker) -> JsonAnswer:
    state = hub.store.state
    return _ok() if state is StoreState.RUNNING else _failed(f"the store is {state.value}")


@router.get("/health/checks/below-node-connection-limit", response_model=Health)
def check_connection_limit(hub: Hub, user: CurrentUser) -> JsonAnswer:
    """Is there room for further connections?"""
    most, current = hub.settings.connection_max, len(hub.connections)
    if most and current >= most:
        return _failed(f"connection_max {most} is reached")
    return _ok(current=current, limit=most or "infinity")


@router.get("/health/checks/node-is-quorum-critical", response_model=Health)
@router.get("/health/checks/node-is-mirror-sync-critical", response_model=Health)
def check_critical(user: CurrentUser) -> JsonAnswer:
    """Would queues lose their majority without this node? A single node has none to lose."""
    return _ok(reason="single node cluster")


@router.get("/health/checks/certificate-expiration/{within}/{unit}", response_model=Health)
def check_certificates(
    within: Annotated[int, Path(ge=1)],
    unit: Literal["days", "weeks", "months", "years"],
    hub: Hub,
    user: CurrentUser,
    around: Around,
) -> JsonAnswer:
    """Does no certificate expire soon? Without TLS listeners none can."""
    expires = around.certificate_expires()
    if expires is None:
        return _ok()
    days = (expires - hub.clock.wall_ms() / 1000) / 86_400
    if days < within * _DAYS[unit]:
        return _failed(f"the certificate expires in {days:.1f} days")
    return _ok()


@router.get("/health/checks/port-listener/{port}", response_model=Health)
def check_port(port: int, user: CurrentUser, around: Around) -> JsonAnswer:
    """Does something listen on this port?"""
    ports = [one.port for one in around.listeners]
    if port in ports:
        return _ok(port=port)
    return _failed("No active listener", missing=port, ports=ports)


@router.get("/health/checks/protocol-listener/{protocol:seg}", response_model=Health)
def check_protocol(protocol: str, user: CurrentUser, around: Around) -> JsonAnswer:
    """Does something listen for this protocol? `amqp091` is another name of `amqp`."""
    protocols = sorted({one.protocol for one in around.listeners})
    wanted = {"amqp091": "amqp", "amqp0.9.1": "amqp"}.get(protocol, protocol)
    if wanted in protocols:
        return _ok(protocol=protocol)
    return _failed("No active listener", missing=protocol, protocols=protocols)


@router.get("/healthchecks/node", response_model=Health)
def node_health(hub: Hub, user: CurrentUser) -> JsonAnswer:
    """RabbitMQ's older form of the same question: is this node well?"""
    return _alarms(hub, user)


@router.get("/healthchecks/node/{name:seg}", response_model=Health)
def named_node_health(name: str, hub: Hub, user: CurrentUser) -> JsonAnswer:
    """The same of a node by its name."""
    if name != hub.settings.node_name:
        raise not_found()
    return _alarms(hub, user)


@router.get("/aliveness-test/{vhost:seg}", response_model=Health)
def aliveness_test(vhost: str, hub: Hub, user: CurrentUser) -> JsonAnswer:
    """Is this virtual host there, and does the broker take work?"""
    vhost_for(hub, user, vhost)
    return _service(hub)
