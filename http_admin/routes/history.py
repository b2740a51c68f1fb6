"""Message history: how much there is, the life of one message, all of it for Spark.

Authorization: users who may access the vhost see the life of a message; its body only those who may
read one of the queues it was in, and administrators. The whole history is for users with the tag
monitoring, and only of vhosts in which they may read all queues and exchanges. The history that a
deleted vhost of the same name left behind is for administrators alone. A queue without history
keeps a journal for itself, which no user sees.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from leveret.broker import Action, Broker, User
from leveret.broker.publishing.delayed import KIND as DELAYED
from leveret.http_admin.auth import AppBroker, CurrentUser, require_tag, visible_vhosts
from leveret.http_admin.commit import until_committed
from leveret.http_admin.content import MAX_SHOWN_BODY, text_or_base64
from leveret.http_admin.context import Context, HistoryRows, HistorySource
from leveret.http_admin.errors import ApiError, bad_request, not_found
from leveret.http_admin.json_response import json_safe
from leveret.http_admin.middleware.concurrency import ResponseSlot
from leveret.http_admin.responses import ERROR_RESPONSES
from leveret.http_admin.schemas.common import MessageProperties
from leveret.http_admin.schemas.messages import (
    HistoryRanges,
    HistoryRow,
    TracedMessage,
    TraceEvent,
    TraceRow,
)
from leveret.model.history import EventKind, Keep
from leveret.model.message import decode_properties
from leveret.queues.storage.directory import DATABASE_NAME
from leveret.queues.storage.history import (
    HistoryReader,
    HistoryTotalsReader,
    MessageEvent,
    MessageHistory,
)

router = APIRouter(prefix="/api", tags=["history"], responses=ERROR_RESPONSES)
MAX_LIVES = 20
MAX_MESSAGE_ID_BYTES = 255
ARROW_STREAM = "application/vnd.apache.arrow.stream"
_MONITORING = [require_tag("monitoring")]


async def _totals_reader(request: Request, broker: AppBroker) -> HistoryTotalsReader | None:
    """Created by the first request; None if the broker runs in memory."""
    if broker.settings.memory:
        return None
    state = request.app.state
    if not hasattr(state, "history_totals"):
        state.history_totals = HistoryTotalsReader(broker.settings.data_dir)
    reader: HistoryTotalsReader = state.history_totals
    return reader


@router.get("/history")
async def get_history(
    broker: AppBroker,
    user: CurrentUser,
    reader: Annotated[HistoryTotalsReader | None, Depends(_totals_reader)],
) -> HistoryRow:
    """How much history is stored, and since when."""
    limit = broker.settings.history_max_bytes
    if reader is None:
        return {
            "limit_bytes": limit,
            "mode": "memory",
            "size_bytes": 0,
            "messages": 0,
            "events": 0,
            "first_time": None,
            "last_time": None,
        }
    stored = await reader.read()
    return {
        "limit_bytes": limit,
        "mode": broker.settings.history,
        "size_bytes": stored.bytes,
        "first_time": stored.first_ms,
        "last_time": stored.last_ms,
        "messages": stored.messages,
        "events": stored.events,
    }


# The life of one message -------------------------------------------------------------------------


@router.get("/trace", dependencies=[ResponseSlot])
async def trace(
    broker: AppBroker,
    user: CurrentUser,
    id: Annotated[int | None, Query(ge=1, lt=1 << 63, description="The broker's own id.")] = None,
    message_id: Annotated[str | None, Query(max_length=255, description="The property.")] = None,
    vhost: Annotated[str | None, Query(description="Search this vhost only.")] = None,
) -> TraceRow:
    """The life of one message: published, delivered, acked, …

    Several messages may have the same `message_id`, such as one that was dead-lettered and
    published again: their events are returned together, and `message` is the first of them.
    """
    if (id is None) == (not message_id):
        raise bad_request("give either id or message_id")
    if broker.settings.memory:
        raise not_found("this broker runs in memory and stores no history")
    await until_committed(broker)
    reader = HistoryReader(broker.settings.data_dir / DATABASE_NAME)
    ids = [id] if id is not None else await _ids_of(reader, message_id or "")
    allowed = {visible.name for visible in visible_vhosts(broker, user)}
    if vhost is not None:
        allowed &= {vhost}
    lives: list[MessageHistory] = []
    for message in ids:
        life = await reader.message(message)
        if life is None or life.keep is Keep.NOTHING or _vhost_of(life) not in allowed:
            continue
        if _is_of_current_vhost(broker, user, life):
            lives.append(life)
        if len(lives) == MAX_LIVES:
            break
    if not lives:
        raise not_found("no such message in the history")
    return _trace_row(broker, user, lives)


async def _ids_of(reader: HistoryReader, message_id: str) -> list[int]:
    """Messages with this property. The reader finds its bytes; other matches are dropped."""
    encoded = message_id.encode()
    if len(encoded) > MAX_MESSAGE_ID_BYTES:
        raise bad_request(f"a message_id has at most {MAX_MESSAGE_ID_BYTES} bytes")
    return [
        message
        for message, properties in sorted(await reader.find(bytes([len(encoded)]) + encoded))
        if decode_properties(properties).get("message_id") == message_id
    ]


def _vhost_of(life: MessageHistory) -> str:
    if life.publisher is not None and life.publisher.vhost:
        return life.publisher.vhost
    return next((event.vhost for event in life.events if event.vhost), "")


def _is_of_current_vhost(broker: Broker, user: User, life: MessageHistory) -> bool:
    """Whether the user may see it although an earlier vhost may have had the same name."""
    created_ms = broker.vhosts[_vhost_of(life)].created_ms
    return "administrator" in user.tags or life.time_ms >= created_ms


def _trace_row(broker: Broker, user: User, lives: list[MessageHistory]) -> TraceRow:
    events = [
        _event_row(life, event)
        for life in lives
        for event in life.events
        if _has_history(broker, event)
    ]
    events.sort(key=lambda event: event["time_ms"])
    first = lives[0]
    return {
        "message": _message_row(first, _may_read(broker, user, first)),
        "events": events,
        "parents": {life.id: life.parent for life in lives if life.parent is not None},
    }


def _has_history(broker: Broker, event: MessageEvent) -> bool:
    """By the queue's current policy; that of a deleted queue as if it existed."""
    if not event.queue:
        return True
    policy = broker.policies.effective(event.vhost, event.queue, event.queue_kind).definition
    return bool(policy.get("history", broker.settings.history) != "off")


def _may_read(broker: Broker, user: User, life: MessageHistory) -> bool:
    if "administrator" in user.tags:
        return True
    queues = {(event.vhost, event.queue) for event in life.events if event.queue}
    is_authorized = broker.users.is_authorized
    return any(is_authorized(user.name, vhost, Action.GET, queue=name) for vhost, name in queues)


def _message_row(life: MessageHistory, with_body: bool) -> TracedMessage:
    row: TracedMessage = {
        "id": life.id,
        "vhost": _vhost_of(life),
        "exchange": life.exchange,
        "routing_key": life.routing_key,
        "time_ms": life.time_ms,
        "properties": cast(MessageProperties, json_safe(decode_properties(life.properties))),
        "payload_bytes": life.size,
        "kept": life.keep.name.lower(),
    }
    if with_body and life.body is not None:
        shown = life.body[:MAX_SHOWN_BODY]
        is_cut = len(shown) < len(life.body)
        row["payload"], row["payload_encoding"] = text_or_base64(shown, is_cut)
    return row


def _event_row(life: MessageHistory, event: MessageEvent) -> TraceEvent:
    actor = event.actor
    return {
        "time_ms": event.time_ms,
        "event": event.kind.label,
        "message": life.id,
        "queue": event.queue or None,
        "consumer": (actor.consumer_tag or None) if actor else None,
        "connection": (actor.connection or None) if actor else None,
        "user": (actor.user or None) if actor else None,
        "redelivered": event.kind is EventKind.REDELIVERED,
        "detail": _detail(event),
    }


def _detail(event: MessageEvent) -> str | None:
    """Of a delayed message, BCC keys follow the due time; no user may see them."""
    is_schedule = event.queue_kind == DELAYED and event.kind is EventKind.ENQUEUED
    return event.detail.partition(" ")[0] if is_schedule and event.detail else event.detail


# The whole history -------------------------------------------------------------------------------


def _source(broker: Broker, history: HistorySource | None) -> HistorySource:
    if broker.settings.memory:
        raise ApiError(501, "this broker runs in memory and stores no history")
    if history is None:
        raise ApiError(501, "this program does not export its history")
    return history


async def _readable_vhosts(broker: Broker, user: User) -> frozenset[str] | None:
    """Vhosts in which this user may read all queues (deleted ones too) and all exchanges, where
    messages are delayed or unroutable. None means all vhosts."""
    if "administrator" in user.tags:
        return None
    reader = HistoryReader(broker.settings.data_dir / DATABASE_NAME)
    deleted = await reader.deleted_queues()
    created = {name: vhost.created_ms for name, vhost in broker.vhosts.items()}
    reused = await reader.vhosts_existing_before(created)
    queues = [
        *deleted,
        *((vhost.name, name) for vhost in broker.vhosts.values() for name in vhost.queues),
    ]
    may, name = broker.users.is_authorized, user.name
    hidden = {vhost for vhost, queue in queues if not may(name, vhost, Action.GET, queue=queue)}
    return frozenset(
        vhost.name
        for vhost in broker.vhosts.values()
        if broker.users.can_access_vhost(name, vhost.name)
        and vhost.name not in hidden | reused
        and all(
            may(name, vhost.name, Action.SCHEDULE_READ, exchange=exchange or "amq.default")
            for exchange in vhost.exchanges
        )
    )


def _pyarrow_missing(error: ImportError) -> ApiError:
    return ApiError(501, f"reading history needs pyarrow: pip install 'leveret[spark]' ({error})")


@router.get("/history/ranges", response_model=HistoryRanges, dependencies=_MONITORING)
async def history_ranges(
    broker: AppBroker, user: CurrentUser, context: Context, request: Request
) -> dict[str, Any]:
    """The ranges of the stored history, for readers that split it."""
    source = _source(broker, context.history)
    params = dict(request.query_params)
    await until_committed(broker)
    allowed = await _readable_vhosts(broker, user)
    try:
        return await source.ranges(broker.settings.data_dir, params, allowed)
    except ImportError as error:
        raise _pyarrow_missing(error) from error
    except ValueError as error:
        raise bad_request(str(error)) from error


@router.get(
    "/history/export",
    response_class=StreamingResponse,
    dependencies=_MONITORING,
    responses={200: {"content": {ARROW_STREAM: {}}, "description": "An Arrow IPC stream."}},
)
async def history_export(
    broker: AppBroker,
    user: CurrentUser,
    context: Context,
    request: Request,
    table: Annotated[str, Query(description="messages, events, logs or queues.")],
    from_id: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
    to_id: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
    columns: Annotated[str | None, Query(description="Separated by commas.")] = None,
) -> Response:
    """Rows of one table as an Arrow IPC stream."""
    source = _source(broker, context.history)
    params = dict(request.query_params)
    await until_committed(broker)
    allowed = await _readable_vhosts(broker, user)
    try:
        rows = await source.export(broker.settings.data_dir, params, allowed)
    except ImportError as error:
        raise _pyarrow_missing(error) from error
    except ValueError as error:
        raise bad_request(str(error)) from error
    return _RowsResponse(rows)


class _RowsResponse(StreamingResponse):
    """Stops reading at once when the client disconnects."""

    def __init__(self, rows: HistoryRows) -> None:
        super().__init__(rows, media_type=ARROW_STREAM)
        self._rows = rows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._rows.close()
