"""For operators: settings in force, alarms, shutdown, reset."""

from __future__ import annotations

import asyncio
import os
from dataclasses import fields
from pathlib import Path

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from leveret.broker import Broker, User
from leveret.broker.broker import DEFAULT_VHOST
from leveret.broker.metrics import Metrics
from leveret.broker.publishing.dead_letters import STUCK_ALARM
from leveret.config import KEYS, PIB, Key, Settings, default_history_bytes, machine_memory
from leveret.http_admin.auth import (
    AppBroker,
    CurrentUser,
    get_sessions,
    require_tag,
    sees_everything,
    visible_vhosts,
)
from leveret.http_admin.commit import until_committed
from leveret.http_admin.context import Context
from leveret.http_admin.errors import bad_request
from leveret.http_admin.responses import ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.schemas.broker import (
    Alarm,
    DiskUsageRow,
    LostDataRow,
    SettingRow,
    ShutdownStatus,
)
from leveret.model.quantities import maybe_size
from leveret.model.store import RetentionRequest

router = APIRouter(prefix="/api", tags=["operations"], responses=ERROR_RESPONSES)
HIDDEN = "hidden"
MAX_MEMORY_LIMIT = 1 * PIB


@router.get("/settings", dependencies=[require_tag("monitoring")])
async def settings_in_force(broker: AppBroker) -> list[SettingRow]:
    """All settings with their values; secrets are hidden."""
    return [_setting_row(broker.settings, field.name, not field.repr) for field in fields(Settings)]


def _setting_row(settings: Settings, name: str, is_secret: bool) -> SettingRow:
    value = getattr(settings, name)
    plain = str(value) if isinstance(value, Path) else value
    return {
        "key": name,
        "value": HIDDEN if is_secret else plain,
        "shown": HIDDEN if is_secret else KEYS[name].kind.written(value),
        "source": _source(settings, KEYS[name], value),
        "description": KEYS[name].help,
    }


def _source(settings: Settings, key: Key, value: object) -> str:
    default = getattr(Settings(), key.name)
    if key.name == "history_max_bytes":
        default = default_history_bytes(settings.data_dir, settings.disk_free_limit)
    if value == default:
        return "default"
    given = os.environ.get(key.variable)
    if given is not None and key.kind.maybe_parse(given) == value:
        return "environment"
    return "configured"


@router.get("/lost-data", dependencies=[require_tag("monitoring")])
async def lost_data(broker: AppBroker) -> list[LostDataRow]:
    """What damage of the database has cost, until the folder `damaged` is removed."""
    return [
        {"table": lost.table, "vhost": lost.vhost, "queue": lost.queue, "text": lost.text}
        for lost in broker.store.lost
    ]


@router.get("/alarms")
async def alarms(broker: AppBroker, user: CurrentUser) -> list[Alarm]:
    """Alarms that are raised at the moment. Most of them block publishers."""
    return [alarm_row(broker, name, why) for name, why in alarms_for(broker, user).items()]


def alarm_row(broker: Broker, name: str, reason: str) -> Alarm:
    row: Alarm = {"name": name, "reason": reason}
    if name == "disk" and not broker.settings.memory:
        row["disk_usage"] = disk_usage_row(broker)
    return row


def disk_usage_row(broker: Broker) -> DiskUsageRow:
    usage = broker.resource_monitor.disk_usage()
    return {
        "total": usage.total,
        "free": usage.free,
        "messages": usage.messages,
        "history": usage.history,
        "free_pages": usage.free_pages,
        "wal": usage.wal,
        "logs": usage.logs,
        "other": usage.other,
    }


def alarms_for(broker: Broker, user: User) -> dict[str, str]:
    """Reasons of the raised alarms, without names from vhosts that the user may not access."""
    raised = broker.alarms.raised
    if STUCK_ALARM in raised and not sees_everything(user):
        names = {vhost.name for vhost in visible_vhosts(broker, user)}
        raised[STUCK_ALARM] = broker.dead_letters.stuck_reason(names)
    return raised


class MemoryLimitBody(BaseModel):
    """One of both."""

    relative: float | None = Field(
        default=None, ge=0, le=1, description="Share of the machine's memory."
    )
    absolute: int | str | None = Field(
        default=None, description='Bytes, or a size such as "512MiB".'
    )


@router.put("/memory-high-watermark", dependencies=[require_tag()], **NO_CONTENT)
async def set_memory_high_watermark(broker: AppBroker, body: MemoryLimitBody) -> None:
    """Set the memory use above which publishers are paused, until the next start."""
    if (body.relative is None) == (body.absolute is None):
        raise bad_request("give either relative or absolute")
    if body.relative is not None:
        broker.resource_monitor.set_memory_limit(int(machine_memory() * body.relative))
        return
    size = maybe_size(body.absolute)
    if size is None or not 0 <= size <= MAX_MEMORY_LIMIT:
        raise bad_request(
            f'absolute must be a size such as 536870912 or "512MiB", not {body.absolute!r:.100}'
        )
    broker.resource_monitor.set_memory_limit(int(size))


@router.post("/shutdown", status_code=202, dependencies=[require_tag()])
async def shutdown(context: Context) -> ShutdownStatus:
    """Stop the broker cleanly, as SIGTERM would."""
    asyncio.get_running_loop().call_soon(context.request_stop)
    return {"status": "stopping"}


@router.delete("/reset", dependencies=[require_tag()], **NO_CONTENT)
async def reset(broker: AppBroker, request: Request, everything: bool = False) -> None:
    """Forget measured rates; with `everything`, delete all objects, messages and history."""
    if not everything:
        broker.metrics = Metrics(broker)
        return
    for connection in list(broker.connections):
        connection.close("the broker is being reset")
    await broker.vhost_deletions.finished(DEFAULT_VHOST)
    _delete_everything(broker)
    await until_committed(broker)
    await broker.store.apply_retention(
        RetentionRequest(
            upto=max(0, next(broker.store.ids) - 1),
            before_ms=broker.clock.wall_ms() + 1,
            max_bytes=0,
        )
    )
    get_sessions(request).clear()


def _delete_everything(broker: Broker) -> None:
    for vhost in list(broker.vhosts):
        broker.delete_vhost(vhost)
    for user in list(broker.users.by_name):
        broker.users.delete_user(user)
    for key, _ in broker.parameters:
        broker.parameters.delete(*key)
    broker.add_vhost(DEFAULT_VHOST)
    broker.make_default_user()
