"""Members of consumer groups over HTTP: join, fetch, commit, leave."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

from http_admin.auth import CurrentUser, Hub
from http_admin.routes.logs import (
    LONGEST_WAIT,
    MOST_READ,
    CommitBody,
    FetchBody,
    RecordRow,
    granted,
    place,
    record_row,
    require,
)
from http_admin.views import Row
from leveret.broker import Action
from leveret.broker.log_members import DEFAULT_PREFETCH, DEFAULT_SESSION, Joining

router = APIRouter(prefix="/api", tags=["logs"])
_MEMBERS = "/logs/{vhost:seg}/{name:seg}/groups/{group:seg}/members"
LONGEST_SESSION = 300.0


class JoinBody(BaseModel):
    start: int | str = Field(
        default="first",
        description="Where to begin if the group has never been there: first, last, next, an "
        "offset, a time or an interval as 1h.",
    )
    prefetch: int = Field(default=DEFAULT_PREFETCH, ge=1, le=MOST_READ)
    session: float = Field(
        default=DEFAULT_SESSION,
        ge=1,
        le=LONGEST_SESSION,
        description=f"Seconds of silence (a fetch may wait {LONGEST_WAIT:.0f}) that end it.",
    )


class Joined(BaseModel):
    member: str
    partitions: list[int]


class Fetched(BaseModel):
    records: list[RecordRow]
    partitions: list[int] = Field(description="What the member has right now.")


class Committed(BaseModel):
    offsets: dict[int, int | None] = Field(description="Of the member's partitions.")


@router.post(_MEMBERS, response_model=Joined, status_code=201)
async def join_group(
    vhost: str, name: str, group: str, hub: Hub, user: CurrentUser, body: JoinBody | None = None
) -> Row:
    """Become a member of a group: it shares the partitions with all others, over AMQP, too."""
    where, ask = require(hub, user, vhost, Action.LOG_GROUP, name), body or JoinBody()
    asked = Joining(group, place(ask.start), ask.prefetch, ask.session)
    member = hub.logs.join(where, name, user.name, asked)
    return {"member": member.tag, "partitions": member.partitions}


@router.post(_MEMBERS + "/{member:seg}/fetch", response_model=Fetched)
async def fetch_as_member(
    vhost: str,
    name: str,
    group: str,
    member: str,
    hub: Hub,
    user: CurrentUser,
    body: FetchBody | None = None,
) -> Row:
    """Records that have not been fetched yet, of the partitions the member has."""
    where, ask = require(hub, user, vhost, Action.LOG_GROUP, name), body or FetchBody()
    found = hub.logs.member(where, name, group, member)
    records = await hub.logs.fetch_as(found, ask.count, ask.wait)
    require(hub, user, vhost, Action.LOG_GROUP, name)  # it may have been taken away meanwhile
    rows = [record_row(one) for one in records]
    return {"records": rows, "partitions": found.partitions}


@router.post(_MEMBERS + "/{member:seg}/commit", response_model=Committed)
async def commit_as_member(
    where: Annotated[str, granted(Action.LOG_GROUP)],
    name: str,
    group: str,
    member: str,
    hub: Hub,
    body: CommitBody,
) -> Row:
    """Everything below these offsets is done; partitions that moved meanwhile stay as they are."""
    found = hub.logs.member(where, name, group, member)
    return {"offsets": await hub.logs.commit_as(found, body.offsets)}


@router.delete(_MEMBERS + "/{member:seg}", status_code=204)
async def leave_group(
    vhost: str, name: str, group: str, member: str, hub: Hub, user: CurrentUser
) -> None:
    """Leave: what was fetched and not committed goes to the other members."""
    where = require(hub, user, vhost, Action.LOG_GROUP, name)
    hub.logs.leave(hub.logs.member(where, name, group, member))
