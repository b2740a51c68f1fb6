"""Logs: make, describe, write, read, and look after consumer groups."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from http_admin.auth import CurrentUser, Hub, vhost_for, visible_vhosts
from http_admin.content import body_of, checked_properties, shown_body, shown_values
from http_admin.durable import require_unblocked, until_durable
from http_admin.errors import bad_request
from http_admin.shapes import MessageProperties
from http_admin.turns import InTurn, in_turn
from http_admin.views import Row
from leveret.broker import Action, Broker, User, governing
from leveret.broker.logs import LogRecord, NewRecord
from queues.stream.spec import MAX_PARTITIONS

router = APIRouter(prefix="/api", tags=["logs"])
LONGEST_WAIT = 20.0
MOST_RECORDS = 500
MOST_READ = 1_000
LONGEST_OFFSET = 20


class LogBody(BaseModel):
    partitions: int = Field(default=1, ge=1, le=MAX_PARTITIONS)
    max_age: str | None = Field(default=None, description="How long records are kept, as 7D.")
    max_length_bytes: int | None = Field(default=None, ge=1)
    cleanup_policy: str | None = Field(default=None, description="delete or compact.")
    segment_bytes: int | None = Field(default=None, ge=1)
    delete_retention: str | None = Field(
        default=None, description="How long compaction keeps tombstones, as 1D."
    )


class Segment(BaseModel):
    base_offset: int
    next_offset: int
    bytes: int
    sealed: bool


class Damage(BaseModel):
    """A stretch of a file that cannot be read; its records are skipped."""

    segment: int
    position: int
    length: int
    first_offset: int
    next_offset: int
    reason: str


class Partition(BaseModel):
    index: int
    queue: str
    first_offset: int
    next_offset: int
    messages: int
    bytes: int
    segments: list[Segment]
    damage: list[Damage]
    cut_bytes: int = Field(description="Octets cut off its end when it was opened.")
    duplicates: int = Field(description="Records of idempotent producers that were there already.")
    gaps: int = Field(description="Records refused because the ones before them are missing.")


class Retention(BaseModel):
    max_age: str | None
    max_length_bytes: int | None


class Log(BaseModel):
    name: str
    vhost: str
    partitions: list[Partition]
    partitioned: bool
    arguments: dict[str, Any]
    retention: Retention
    max_age: str | None
    max_age_ms: int | None
    max_length_bytes: int | None
    cleanup_policy: str
    messages: int
    bytes: int
    consumers: int
    groups: list[str]


def _log_row(described: Row) -> Row:
    retention = {key: described[key] for key in ("max_age", "max_length_bytes")}
    return {**described, "retention": retention}


def require(hub: Broker, user: User, vhost: str, action: Action, name: str) -> str:
    """The vhost's name, if the user may do this to the log."""
    held = vhost_for(hub, user, vhost)
    hub.users.demand(user.name, held.name, action, log=name)
    return held.name


def granted(action: Action) -> Any:
    """The same as a dependency: found out before what a body holds is looked at."""

    async def check(vhost: str, name: str, hub: Hub, user: CurrentUser) -> str:
        return require(hub, user, vhost, action, name)

    return Depends(check)


@router.get("/logs", response_model=list[Log])
def list_logs(hub: Hub, user: CurrentUser) -> list[Row]:
    """Logs of every vhost the user may see."""
    vhosts = visible_vhosts(hub, user)
    return [_log_row(log) for vhost in vhosts for log in hub.logs.list(vhost.name)]


@router.get("/logs/{vhost:seg}", response_model=list[Log])
def list_vhost_logs(vhost: str, hub: Hub, user: CurrentUser) -> list[Row]:
    """Logs of one vhost, a partitioned one as one."""
    return [_log_row(log) for log in hub.logs.list(vhost_for(hub, user, vhost).name)]


@router.get("/logs/{vhost:seg}/{name:seg}", response_model=Log)
def get_log(vhost: str, name: str, hub: Hub, user: CurrentUser) -> Row:
    """One log with its partitions and segments."""
    return _log_row(hub.logs.describe(vhost_for(hub, user, vhost).name, name))


@router.put("/logs/{vhost:seg}/{name:seg}", status_code=201)
async def put_log(
    vhost: str,
    name: str,
    hub: Hub,
    user: CurrentUser,
    response: Response,
    body: LogBody | None = None,
) -> None:
    """Make a log."""
    where = require(hub, user, vhost, Action.LOG_DECLARE, name)
    wanted = body or LogBody()
    if wanted.partitions != 1:
        partitions = {"x-partitions": wanted.partitions}
        governing.require_partitions(hub, user.name, hub.vhosts[where], name, partitions)
    is_new = hub.logs.create(where, name, **wanted.model_dump())
    await until_durable(hub, hub.vhosts[where].queues[name])
    response.status_code = 201 if is_new else 204


@router.delete("/logs/{vhost:seg}/{name:seg}", status_code=204)
async def delete_log(vhost: str, name: str, hub: Hub, user: CurrentUser) -> None:
    """Delete a log with its partitions and records."""
    hub.logs.delete(require(hub, user, vhost, Action.LOG_DELETE, name), name)
    await until_durable(hub)


# Records -----------------------------------------------------------------------------------------


class RecordBody(BaseModel):
    value: str | None = Field(description="The body; null under a key is a tombstone.")
    key: str | None = None
    encoding: str = Field(default="string", description="string or base64.")
    partition: int | None = Field(default=None, ge=0)
    headers: dict[str, Any] | None = None
    properties: dict[str, Any] = Field(default_factory=dict)


class RecordsBody(BaseModel):
    records: list[RecordBody] = Field(max_length=MOST_RECORDS)


class Stored(BaseModel):
    published: int


class RecordRow(BaseModel):
    partition: int
    offset: int
    timestamp: int = Field(description="When it was written, in milliseconds since 1970.")
    exchange: str
    key: str
    value: str
    encoding: str
    headers: dict[str, Any]
    properties: MessageProperties


class RecordRows(BaseModel):
    records: list[RecordRow]


def _new_record(body: RecordBody) -> NewRecord:
    properties = dict(body.properties)
    if body.headers is not None:
        properties["headers"] = body.headers
    content = body_of(body.value or "", body.encoding)
    return NewRecord(content, body.key or "", body.partition, checked_properties(properties))


def record_row(record: LogRecord) -> Row:
    shown = shown_body(record.body, "auto", None)
    properties = shown_values(record.properties)
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.time_ms,
        "exchange": record.exchange,
        "key": record.key,
        "value": shown["payload"],
        "encoding": shown["payload_encoding"],
        "headers": properties.pop("headers", {}),
        "properties": properties,
    }


@router.post("/logs/{vhost:seg}/{name:seg}/publish", response_model=Stored)
async def publish_records(
    where: Annotated[str, granted(Action.LOG_APPEND)],
    name: str,
    hub: Hub,
    user: CurrentUser,
    body: RecordsBody,
) -> Row:
    """Append records; the answer comes when they are on disk."""
    require_unblocked(hub)
    records = [_new_record(one) for one in body.records]
    return {"published": await hub.logs.publish(where, name, records, user.name)}


@router.get("/logs/{vhost:seg}/{name:seg}/records", response_model=RecordRows)
async def read_records(
    vhost: str,
    name: str,
    hub: Hub,
    user: CurrentUser,
    request: Request,
    partition: Annotated[int, Query(ge=0)] = 0,
    offset: str = "first",
    count: Annotated[int, Query(ge=1, le=MOST_READ)] = 100,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT)] = 0,
) -> Row:
    """Records from an offset on: a number, first, last, next, a time or an interval as 1h."""
    where = require(hub, user, vhost, Action.LOG_READ, name)
    if not wait:
        await in_turn(request, user)
    found = await hub.logs.read(where, name, partition, place(offset), count, wait)
    await in_turn(request, user)
    require(hub, user, vhost, Action.LOG_READ, name)  # it may have been taken away meanwhile
    return {"records": [record_row(one) for one in found]}


def place(text: str | int) -> Any:
    """An offset as a log understands it; ISO times become moments."""
    if isinstance(text, int):
        return text
    if text.isdecimal():
        if len(text) > LONGEST_OFFSET:
            raise bad_request(f"an offset has at most {LONGEST_OFFSET} digits")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# Groups ------------------------------------------------------------------------------------------


class Member(BaseModel):
    consumer_tag: str
    connection: str
    partitions: list[int]
    unacknowledged: int


class GroupPartition(BaseModel):
    partition: int
    committed: int | None
    end: int
    lag: int


class Group(BaseModel):
    group: str
    commit: str = Field(description="When offsets are committed.")
    commit_interval_ms: int | None
    members: list[Member]
    partitions: list[GroupPartition]
    lag: int


class FetchBody(BaseModel):
    count: int = Field(default=100, ge=1, le=MOST_READ)
    wait: float = Field(default=0, ge=0, le=LONGEST_WAIT)


def _as_many_as_partitions(offsets: Any) -> Any:
    """Before each is looked at."""
    if isinstance(offsets, dict) and len(offsets) > MAX_PARTITIONS:
        raise ValueError(f"a log has at most {MAX_PARTITIONS} partitions")
    return offsets


class CommitBody(BaseModel):
    offsets: Annotated[dict[int, int], BeforeValidator(_as_many_as_partitions)] = Field(
        description="Per partition, the next offset to read."
    )


class ResetBody(BaseModel):
    to: int | str = Field(description="first, last, next, an offset, a time or an interval as 1h.")
    partition: int | None = Field(default=None, ge=0)
    dry_run: bool = False


class Move(BaseModel):
    partition: int
    was: int | None = Field(alias="from", description="null where the group has never been.")
    to: int


@router.get(
    "/logs/{vhost:seg}/{name:seg}/groups", response_model=list[Group], dependencies=[InTurn]
)
def list_groups(vhost: str, name: str, hub: Hub, user: CurrentUser) -> list[Row]:
    """Consumer groups: members, committed offsets and lag."""
    where = require(hub, user, vhost, Action.LOG_READ, name)
    partitions = hub.logs.describe(where, name)["partitions"]
    first = {one["index"]: one["first_offset"] for one in partitions}
    groups = hub.logs.groups(where, name)
    for group in groups:
        for one in group["partitions"]:
            if one["lag"] is None:
                one["lag"] = one["end"] - first[one["partition"]]
    return groups


@router.post("/logs/{vhost:seg}/{name:seg}/groups/{group:seg}/fetch", response_model=RecordRows)
async def fetch_records(
    vhost: str,
    name: str,
    group: str,
    hub: Hub,
    user: CurrentUser,
    request: Request,
    body: FetchBody | None = None,
) -> Row:
    """Records a group has not committed yet; a new group begins at the first."""
    where, ask = require(hub, user, vhost, Action.LOG_GROUP, name), body or FetchBody()
    if not ask.wait:
        await in_turn(request, user)
    found = await hub.logs.fetch(where, name, group, ask.count, ask.wait)
    await in_turn(request, user)
    require(hub, user, vhost, Action.LOG_GROUP, name)
    return {"records": [record_row(one) for one in found]}


@router.post("/logs/{vhost:seg}/{name:seg}/groups/{group:seg}/commit", status_code=204)
async def commit_offsets(
    where: Annotated[str, granted(Action.LOG_GROUP)],
    name: str,
    group: str,
    hub: Hub,
    body: CommitBody,
) -> None:
    """Everything below these offsets is done."""
    await hub.logs.commit(where, name, group, body.offsets)


@router.post("/logs/{vhost:seg}/{name:seg}/groups/{group:seg}/reset", response_model=list[Move])
async def reset_group(
    vhost: str, name: str, group: str, hub: Hub, user: CurrentUser, body: ResetBody
) -> list[Row]:
    """Move a group; with `dry_run` only say where it would go."""
    where = require(hub, user, vhost, Action.LOG_GROUP, name)
    moves = hub.logs.reset(where, name, group, place(body.to), body.partition, body.dry_run)
    await until_durable(hub)
    return [{"partition": number, "from": was, "to": to} for number, was, to in moves]


@router.delete("/logs/{vhost:seg}/{name:seg}/groups/{group:seg}", status_code=204)
async def delete_group(vhost: str, name: str, group: str, hub: Hub, user: CurrentUser) -> None:
    """Forget a group that has no members, with its offsets."""
    hub.logs.delete_group(require(hub, user, vhost, Action.LOG_GROUP_DELETE, name), name, group)
    await until_durable(hub)
