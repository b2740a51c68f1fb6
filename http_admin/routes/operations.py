"""For operators: settings in force, alarms, stopping, emptying."""

from __future__ import annotations

import asyncio
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from http_admin.auth import (
    CurrentUser,
    Hub,
    get_doorkeeper,
    require_tag,
    sees_everything,
    visible_vhosts,
)
from http_admin.durable import until_durable
from http_admin.shapes_broker import Alarm
from http_admin.surroundings import Around
from http_admin.views import Row
from leveret.broker import Broker, User
from leveret.broker.broker import DEFAULT_VHOST
from leveret.broker.dead_letters import STUCK_ALARM, stuck_reason
from leveret.broker.metrics import Metrics
from leveret.config import KEYS, Key, Settings
from leveret.model.store import Retention

router = APIRouter(prefix="/api", tags=["operations"])
HIDDEN = "hidden"


class SettingRow(BaseModel):
    key: str
    value: Any
    shown: str = Field(description="The value as a settings file has it, such as 128KiB or 7d.")
    source: str = Field(description="default, environment, or configured (by flag or file).")
    description: str


class Stopping(BaseModel):
    status: str


@router.get("/settings", response_model=list[SettingRow], dependencies=[require_tag("monitoring")])
def settings_in_force(hub: Hub) -> list[Row]:
    """Every setting with its value; secrets are hidden."""
    return [_setting(hub.settings, item.name, not item.repr) for item in fields(Settings)]


def _setting(settings: Settings, name: str, secret: bool) -> Row:
    value = getattr(settings, name)
    plain = str(value) if isinstance(value, Path) else value
    return {
        "key": name,
        "value": HIDDEN if secret else plain,
        "shown": HIDDEN if secret else KEYS[name].kind.written(value),
        "source": _source(settings, KEYS[name], value),
        "description": KEYS[name].help,
    }


def _source(settings: Settings, key: Key, value: object) -> str:
    if value == getattr(Settings(), key.name):
        return "default"
    given = os.environ.get(key.variable)
    if given is not None and key.kind.maybe_parse(given) == value:
        return "environment"
    return "configured"


@router.get("/alarms", response_model=list[Alarm])
def alarms(hub: Hub, user: CurrentUser) -> list[Row]:
    """Alarms that are raised right now: most of them hold publishers back."""
    return [{"name": name, "reason": why} for name, why in alarms_for(hub, user).items()]


def alarms_for(hub: Broker, user: User) -> dict[str, str]:
    """Why each is raised, without names from vhosts that this user may not look into."""
    raised = hub.alarms.raised
    if STUCK_ALARM in raised and not sees_everything(user):
        raised[STUCK_ALARM] = stuck_reason(hub, {one.name for one in visible_vhosts(hub, user)})
    return raised


@router.post("/shutdown", status_code=202, response_model=Stopping, dependencies=[require_tag()])
async def shutdown(around: Around) -> Row:
    """Stop the broker cleanly, as a signal would."""
    asyncio.get_running_loop().call_soon(around.request_stop)
    return {"status": "stopping"}


@router.delete("/reset", status_code=204, dependencies=[require_tag()])
async def reset(hub: Hub, request: Request, everything: bool = False) -> None:
    """Forget measured rates; with `everything`, empty the broker as if it were new."""
    if not everything:
        hub.metrics = Metrics(hub)
        return
    for connection in list(hub.connections):
        connection.close("the broker is being reset")
    _empty(hub)
    await until_durable(hub)
    await hub.store.sweep(
        Retention(
            upto=max(0, next(hub.store.ids) - 1),
            before_ms=hub.clock.wall_ms() + 1,
            max_bytes=0,
        )
    )
    get_doorkeeper(request).sign_out_all()


def _empty(hub: Broker) -> None:
    for vhost in list(hub.vhosts):
        hub.delete_vhost(vhost)
    for user in list(hub.users.by_name):
        hub.users.delete_user(user)
    for key, _ in hub.parameters:
        hub.parameters.delete(*key)
    hub.add_vhost(DEFAULT_VHOST)
    hub.make_default_user()
