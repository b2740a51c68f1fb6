"""Logs: create, show, append, read; consumer groups and their members over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from leveret.broker import Action, Broker, User
from leveret.broker.access.declare_permissions import require_partition_permission
from leveret.broker.logs.http_members import DEFAULT_PREFETCH, DEFAULT_SESSION, JoinRequest
from leveret.broker.logs.info import group_info
from leveret.broker.logs.service import NewRecord
from leveret.http_admin.auth import (
    AppBroker,
    CurrentUser,
    PathVhost,
    require_unchanged,
    vhost_for,
    visible_vhosts,
)
from leveret.http_admin.commit import require_unblocked, until_committed
from leveret.http_admin.content import body_of, checked_properties
from leveret.http_admin.errors import bad_request
from leveret.http_admin.json_response import FastJsonResponse, dump_json
from leveret.http_admin.listing import ROWS_PER_STEP, rows_response
from leveret.http_admin.middleware.concurrency import (
    ResponseSlot,
    take_response_slot,
    take_response_slot_after_wait,
)
from leveret.http_admin.responses import CREATED, ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.rows.logs import group_row, log_row, move_row, record_row
from leveret.http_admin.schemas.logs import (
    CommittedOffsets,
    FetchedRecords,
    GroupRow,
    JoinedMember,
    LogRow,
    OffsetMove,
    PublishedRecords,
    RecordRows,
)
from leveret.queues.log.spec import MAX_PARTITIONS

router = APIRouter(prefix="/api", tags=["logs"], responses=ERROR_RESPONSES)
MAX_WAIT_SECONDS = 20.0
MAX_PUBLISHED = 500
MAX_READ = 1_000
MAX_OFFSET_DIGITS = 20
MAX_SESSION_SECONDS = 300.0
_LOG = "/logs/{vhost:seg}/{name:seg}"
_GROUP = _LOG + "/groups/{group:seg}"
_MEMBER = _GROUP + "/members/{member:seg}"


def authorize(broker: Broker, user: User, vhost: str, action: Action, name: str) -> str:
    """The vhost's name, if the user may do this to the log."""
    virtual_host = vhost_for(broker, user, vhost)
    broker.users.authorize(user.name, virtual_host.name, action, log=name)
    return virtual_host.name


def _authorized(action: Action) -> Any:
    """The same as a dependency: the permission is checked before the body is validated."""

    async def check(vhost: str, name: str, broker: AppBroker, user: CurrentUser) -> str:
        return authorize(broker, user, vhost, action, name)

    return Depends(check)


def parse_offset(text: str | int) -> Any:
    """An offset as logs accept it; ISO times become datetimes."""
    if isinstance(text, int):
        return text
    if text.isdecimal():
        if len(text) > MAX_OFFSET_DIGITS:
            raise bad_request(f"an offset has at most {MAX_OFFSET_DIGITS} digits")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# Logs --------------------------------------------------------------------------------------------


class LogBody(BaseModel):
    partitions: int = Field(default=1, ge=1, le=MAX_PARTITIONS)
    max_age: str | None = Field(default=None, description="How long records are kept, such as 7D.")
    max_length_bytes: int | None = Field(default=None, ge=1)
    cleanup_policy: str | None = Field(default=None, description="delete or compact.")
    segment_bytes: int | None = Field(default=None, ge=1)
    delete_retention: str | None = Field(
        default=None, description="How long compaction keeps tombstones, such as 1D."
    )


@router.get("/logs", response_model=list[LogRow])
async def list_logs(broker: AppBroker, user: CurrentUser) -> FastJsonResponse:
    """Logs of all vhosts that the user may access."""
    vhosts = visible_vhosts(broker, user)
    rows = [log_row(log) for vhost in vhosts for log in broker.logs.list(vhost.name)]
    return FastJsonResponse(dump_json(rows))


@router.get("/logs/{vhost:seg}", response_model=list[LogRow])
async def list_vhost_logs(vhost: PathVhost, broker: AppBroker) -> FastJsonResponse:
    """Logs of one vhost; a partitioned log is one row."""
    return FastJsonResponse(dump_json([log_row(log) for log in broker.logs.list(vhost.name)]))


@router.get(_LOG, response_model=LogRow)
async def get_log(vhost: PathVhost, name: str, broker: AppBroker) -> FastJsonResponse:
    """One log with its partitions and segments."""
    return FastJsonResponse(dump_json(log_row(broker.logs.describe(vhost.name, name))))


@router.put(_LOG, **CREATED)
async def put_log(
    vhost: str,
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    response: Response,
    body: LogBody | None = None,
) -> None:
    """Create a log."""
    vhost = authorize(broker, user, vhost, Action.LOG_DECLARE, name)
    fields = body or LogBody()
    if fields.partitions != 1:
        require_partition_permission(
            broker, user.name, broker.vhosts[vhost], name, {"x-partitions": fields.partitions}
        )
    is_new = await broker.logs.create(vhost, name, **fields.model_dump())
    await until_committed(broker, broker.vhosts[vhost].queues[name])
    response.status_code = 201 if is_new else 204


@router.delete(_LOG, **NO_CONTENT)
async def delete_log(vhost: str, name: str, broker: AppBroker, user: CurrentUser) -> None:
    """Delete a log with its partitions and records."""
    broker.logs.delete(authorize(broker, user, vhost, Action.LOG_DELETE, name), name)
    await until_committed(broker)


# Records -----------------------------------------------------------------------------------------


class RecordBody(BaseModel):
    value: str | None = Field(description="The body; null is a tombstone for the key.")
    key: str | None = None
    encoding: str = Field(default="string", description="string or base64.")
    partition: int | None = Field(default=None, ge=0)
    headers: dict[str, Any] | None = None
    properties: dict[str, Any] = Field(default_factory=dict)


class RecordsBody(BaseModel):
    records: list[RecordBody] = Field(max_length=MAX_PUBLISHED)


def _new_record(body: RecordBody) -> NewRecord:
    properties = dict(body.properties)
    if body.headers is not None:
        properties["headers"] = body.headers
    content = body_of(body.value or "", body.encoding)
    return NewRecord(content, body.key or "", body.partition, checked_properties(properties))


@router.post(_LOG + "/publish")
async def publish_records(
    vhost: Annotated[str, _authorized(Action.LOG_APPEND)],
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    body: RecordsBody,
) -> PublishedRecords:
    """Append records. The response is sent when they are on disk."""
    require_unblocked(broker)
    records = [_new_record(record) for record in body.records]
    return {"published": await broker.logs.publish(vhost, name, records, user)}


@router.get(_LOG + "/records", response_model=RecordRows)
async def read_records(
    vhost: str,
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    request: Request,
    partition: Annotated[int, Query(ge=0)] = 0,
    offset: str = "first",
    count: Annotated[int, Query(ge=1, le=MAX_READ)] = 100,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0,
) -> FastJsonResponse:
    """Records from an offset on: a number, first, last, next, a time, or an interval such as 1h."""
    vhost = authorize(broker, user, vhost, Action.LOG_READ, name)
    if not wait:
        await take_response_slot(request, user)
    start = parse_offset(offset)
    records = await broker.logs.read(vhost, name, partition, start, count, wait)
    await take_response_slot_after_wait(request, user)
    authorize(broker, user, vhost, Action.LOG_READ, name)  # may have been revoked meanwhile
    rows = [record_row(record) for record in records]
    return FastJsonResponse(dump_json({"records": rows}))


# Groups ------------------------------------------------------------------------------------------


class FetchBody(BaseModel):
    count: int = Field(default=100, ge=1, le=MAX_READ)
    wait: float = Field(default=0, ge=0, le=MAX_WAIT_SECONDS)


def _check_offset_count(offsets: Any) -> Any:
    """Before each offset is validated."""
    if isinstance(offsets, dict) and len(offsets) > MAX_PARTITIONS:
        raise ValueError(f"a log has at most {MAX_PARTITIONS} partitions")
    return offsets


class CommitBody(BaseModel):
    offsets: Annotated[dict[int, int], BeforeValidator(_check_offset_count)] = Field(
        description="For each partition, the next offset to read."
    )


class ResetBody(BaseModel):
    to: int | str = Field(
        description="first, last, next, an offset, a time, or an interval such as 1h."
    )
    partition: int | None = Field(default=None, ge=0)
    dry_run: bool = False


@router.get(_LOG + "/groups", response_model=list[GroupRow], dependencies=[ResponseSlot])
async def list_groups(
    vhost: str, name: str, broker: AppBroker, user: CurrentUser
) -> FastJsonResponse:
    """Consumer groups: members, committed offsets and lag."""
    vhost = authorize(broker, user, vhost, Action.LOG_READ, name)
    groups = broker.logs.consumer_groups(vhost, name)
    at_once = max(1, ROWS_PER_STEP // len(groups[0].logs)) if groups else 1
    return await rows_response(groups, lambda group: group_row(group_info(group)), (), at_once)


@router.post(_GROUP + "/fetch", response_model=RecordRows)
async def fetch_records(
    vhost: str,
    name: str,
    group: str,
    broker: AppBroker,
    user: CurrentUser,
    request: Request,
    body: FetchBody | None = None,
) -> FastJsonResponse:
    """Records that a group has not committed yet; a new group begins with the first one."""
    vhost = authorize(broker, user, vhost, Action.LOG_GROUP, name)
    fields = body or FetchBody()
    if not fields.wait:
        await take_response_slot(request, user)
    records = await broker.logs.fetch(vhost, name, group, fields.count, fields.wait)
    await take_response_slot_after_wait(request, user)
    authorize(broker, user, vhost, Action.LOG_GROUP, name)
    rows = [record_row(record) for record in records]
    return FastJsonResponse(dump_json({"records": rows}))


@router.post(_GROUP + "/commit", **NO_CONTENT)
async def commit_offsets(
    vhost: Annotated[str, _authorized(Action.LOG_GROUP)],
    name: str,
    group: str,
    broker: AppBroker,
    body: CommitBody,
) -> None:
    """Commit offsets: all records before them are processed."""
    await broker.logs.commit(vhost, name, group, body.offsets)


@router.post(_GROUP + "/reset")
async def reset_group(
    vhost: str, name: str, group: str, broker: AppBroker, user: CurrentUser, body: ResetBody
) -> list[OffsetMove]:
    """Move the committed offsets of a group; with `dry_run`, return only where they would move."""
    vhost = authorize(broker, user, vhost, Action.LOG_GROUP, name)
    target = parse_offset(body.to)
    moves = broker.logs.reset(vhost, name, group, target, body.partition, body.dry_run)
    await until_committed(broker)
    return [move_row(move) for move in moves]


@router.delete(_GROUP, **NO_CONTENT)
async def delete_group(
    vhost: str, name: str, group: str, broker: AppBroker, user: CurrentUser
) -> None:
    """Delete a group without members, and its committed offsets."""
    vhost = authorize(broker, user, vhost, Action.LOG_GROUP_DELETE, name)
    broker.logs.delete_group(vhost, name, group)
    await until_committed(broker)


# Members -----------------------------------------------------------------------------------------


class JoinBody(BaseModel):
    start: int | str = Field(
        default="first",
        description="Where to begin if the group has no committed offset: first, last, next, an "
        "offset, a time, or an interval such as 1h.",
    )
    prefetch: int = Field(default=DEFAULT_PREFETCH, ge=1, le=MAX_READ)
    session: float = Field(
        default=DEFAULT_SESSION,
        ge=1,
        le=MAX_SESSION_SECONDS,
        description="Seconds without a request after which the member leaves (a fetch may wait "
        f"{MAX_WAIT_SECONDS:.0f}).",
    )


@router.post(_GROUP + "/members", status_code=201)
async def join_group(
    vhost: str,
    name: str,
    group: str,
    broker: AppBroker,
    user: CurrentUser,
    body: JoinBody | None = None,
) -> JoinedMember:
    """Join a group. Members over HTTP and AMQP share its partitions."""
    vhost = authorize(broker, user, vhost, Action.LOG_GROUP, name)
    fields = body or JoinBody()
    join = JoinRequest(group, parse_offset(fields.start), fields.prefetch, fields.session)
    member = broker.logs.join(vhost, name, user.name, join)
    return {"member": member.tag, "partitions": member.partitions}


@router.post(_MEMBER + "/fetch", response_model=FetchedRecords)
async def fetch_as_member(
    vhost: str,
    name: str,
    group: str,
    member: str,
    broker: AppBroker,
    user: CurrentUser,
    request: Request,
    body: FetchBody | None = None,
) -> FastJsonResponse:
    """Records of the member's partitions that were not fetched yet."""
    vhost = authorize(broker, user, vhost, Action.LOG_GROUP, name)
    fields = body or FetchBody()
    group_member = broker.logs.member(vhost, name, group, member)
    records = await broker.logs.fetch_as(group_member, fields.count, fields.wait)
    require_unchanged(request, user)
    authorize(broker, user, vhost, Action.LOG_GROUP, name)  # may have been revoked meanwhile
    rows = [record_row(record) for record in records]
    return FastJsonResponse(dump_json({"records": rows, "partitions": group_member.partitions}))


@router.post(_MEMBER + "/commit")
async def commit_as_member(
    vhost: Annotated[str, _authorized(Action.LOG_GROUP)],
    name: str,
    group: str,
    member: str,
    broker: AppBroker,
    body: CommitBody,
) -> CommittedOffsets:
    """Commit offsets; those of partitions that moved to another member are ignored."""
    group_member = broker.logs.member(vhost, name, group, member)
    return {"offsets": await broker.logs.commit_as(group_member, body.offsets)}


@router.delete(_MEMBER, **NO_CONTENT)
async def leave_group(
    vhost: str, name: str, group: str, member: str, broker: AppBroker, user: CurrentUser
) -> None:
    """Leave a group: records that were fetched and not committed go to the other members."""
    vhost = authorize(broker, user, vhost, Action.LOG_GROUP, name)
    broker.logs.leave(broker.logs.member(vhost, name, group, member))
