"""What happened to messages: how much is kept, one message's life, all of it for Spark.

Who may see what. A life is shown to users who may look into its vhost; the body only to those who
may read one of the queues it was in, or to administrators. Whole history goes to users with the
tag monitoring, of those vhosts whose queues and exchanges they may all read. What a vhost of the
same name had before it was deleted and made anew is for administrators alone. A queue without
history has a journal for itself; it is shown to nobody.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from http_admin.auth import CurrentUser, Hub, require_tag, visible_vhosts
from http_admin.durable import until_durable
from http_admin.errors import ApiError, bad_request, not_found
from http_admin.shapes import MessageProperties
from http_admin.surroundings import Around, HistorySource
from http_admin.turns import InTurn
from http_admin.views import Row
from leveret.broker import Action, Broker, User
from leveret.broker.delays import KIND as DELAYED
from leveret.model.history import EventKind, Keep
from leveret.model.properties import decode_properties
from queues.storage.directory import DATABASE_NAME
from queues.storage.history import Happening, HistoryReader, Life
from queues.storage.holdings import HoldingsReader

router = APIRouter(prefix="/api", tags=["history"])
MOST_LIVES = 20
ARROW_STREAM = "application/vnd.apache.arrow.stream"


class HistoryRow(BaseModel):
    size_bytes: int
    limit_bytes: int
    first_time: int | None = Field(description="Unix milliseconds of the oldest event kept.")
    last_time: int | None
    messages: int
    events: int
    mode: str = Field(description="full, metadata, off, or memory: kept nowhere.")


class TraceEvent(BaseModel):
    time_ms: int
    event: str
    message: int = Field(description="The internal id of the message it happened to.")
    queue: str | None
    consumer: str | None
    connection: str | None
    user: str | None
    redelivered: bool
    detail: str | None


class TracedMessage(BaseModel):
    id: int
    vhost: str
    exchange: str
    routing_key: str
    time_ms: int
    properties: MessageProperties
    payload_bytes: int
    kept: str = Field(description="full or metadata.")
    payload: str | None = None
    payload_encoding: str | None = None


class TraceRow(BaseModel):
    message: TracedMessage
    events: list[TraceEvent]


async def _holdings(request: Request, hub: Hub) -> HoldingsReader | None:
    """Made at the first question; a broker in memory has none."""
    if hub.settings.memory:
        return None
    state = request.app.state
    if not hasattr(state, "holdings"):
        state.holdings = HoldingsReader(hub.settings.data_dir)
    reader: HoldingsReader = state.holdings
    return reader


@router.get("/history", response_model=HistoryRow)
async def get_history(
    hub: Hub,
    user: CurrentUser,
    reader: Annotated[HoldingsReader | None, Depends(_holdings)],
) -> Row:
    """How much history is kept, and since when."""
    settings = hub.settings
    row: Row = {"limit_bytes": settings.history_max_bytes, "mode": settings.history}
    if reader is None:
        nothing = dict.fromkeys(("size_bytes", "messages", "events"), 0)
        return row | nothing | {"first_time": None, "last_time": None, "mode": "memory"}
    held = await reader.read()
    return row | {
        "size_bytes": held.bytes,
        "first_time": held.first_ms,
        "last_time": held.last_ms,
        "messages": held.messages,
        "events": held.events,
    }


# One message's life ------------------------------------------------------------------------------


@router.get("/trace", response_model=TraceRow, dependencies=[InTurn])
async def trace(
    hub: Hub,
    user: CurrentUser,
    id: Annotated[int | None, Query(ge=1, lt=1 << 63, description="The broker's own id.")] = None,
    message_id: Annotated[str | None, Query(max_length=255, description="The property.")] = None,
    vhost: Annotated[str | None, Query(description="Look in this vhost only.")] = None,
) -> Row:
    """One message's life: published, delivered, acked, …

    By the property `message_id` several messages may be found, such as one that was dead-lettered
    and published again: their events are shown together, `message` is the first of them.
    """
    if (id is None) == (not message_id):
        raise bad_request("give either id or message_id")
    if hub.settings.memory:
        raise not_found("this broker works in memory and keeps no history")
    await until_durable(hub)
    reader = HistoryReader(hub.settings.data_dir / DATABASE_NAME)
    ids = [id] if id is not None else await _named(reader, message_id or "")
    allowed = {one.name for one in visible_vhosts(hub, user)}
    if vhost is not None:
        allowed &= {vhost}
    seen: list[Life] = []
    for one in ids:
        life = await reader.life(one)
        if life is None or life.keep is Keep.NOTHING or _vhost_of(life) not in allowed:
            continue
        if _is_of_this(hub, user, life):
            seen.append(life)
        if len(seen) == MOST_LIVES:
            break
    if not seen:
        raise not_found("no such message in the history")
    return _told(hub, user, seen)


async def _named(reader: HistoryReader, message_id: str) -> list[int]:
    """Found by the bytes of the property; those that only look like it are dropped."""
    name = message_id.encode()
    if len(name) > 255:
        raise bad_request("a message_id has at most 255 octets")
    return [
        one
        for one, properties in sorted(await reader.find(bytes([len(name)]) + name))
        if decode_properties(properties).get("message_id") == message_id
    ]


def _vhost_of(life: Life) -> str:
    if life.publisher is not None and life.publisher.vhost:
        return life.publisher.vhost
    return next((one.vhost for one in life.happenings if one.vhost), "")


def _is_of_this(hub: Broker, user: User, life: Life) -> bool:
    """And not of a vhost that had its name before."""
    return "administrator" in user.tags or life.time_ms >= hub.vhosts[_vhost_of(life)].born_ms


def _told(hub: Broker, user: User, lives: list[Life]) -> Row:
    events = [
        _event(life, one) for life in lives for one in life.happenings if _has_history(hub, one)
    ]
    events.sort(key=lambda event: event["time_ms"])
    return {"message": _message(lives[0], _may_read(hub, user, lives[0])), "events": events}


def _has_history(hub: Broker, one: Happening) -> bool:
    """As its queue is governed now; deleted ones as if they were there."""
    if not one.queue:
        return True
    asked = hub.policies.effective(one.vhost, one.queue, one.queue_kind).definition
    return bool(asked.get("history", hub.settings.history) != "off")


def _may_read(hub: Broker, user: User, life: Life) -> bool:
    if "administrator" in user.tags:
        return True
    queues = {(one.vhost, one.queue) for one in life.happenings if one.queue}
    allows = hub.users.allows
    return any(allows(user.name, vhost, Action.GET, queue=queue) for vhost, queue in queues)


def _message(life: Life, with_body: bool) -> Row:
    row: Row = {
        "id": life.id,
        "vhost": _vhost_of(life),
        "exchange": life.exchange,
        "routing_key": life.routing_key,
        "time_ms": life.time_ms,
        "properties": decode_properties(life.properties),
        "payload_bytes": life.size,
        "kept": life.keep.name.lower(),
    }
    if with_body and life.body is not None:
        row |= _payload(life.body)
    return row


def _payload(body: bytes) -> Row:
    try:
        return {"payload": body.decode(), "payload_encoding": "string"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(body).decode(), "payload_encoding": "base64"}


def _event(life: Life, one: Happening) -> Row:
    actor = one.actor
    return {
        "time_ms": one.time_ms,
        "event": one.kind.label,
        "message": life.id,
        "queue": one.queue or None,
        "consumer": (actor.consumer_tag or None) if actor else None,
        "connection": (actor.connection or None) if actor else None,
        "user": (actor.user or None) if actor else None,
        "redelivered": one.kind is EventKind.REDELIVERED,
        "detail": _shown_detail(one),
    }


def _shown_detail(one: Happening) -> str | None:
    """Where it is delayed, keys of blind copies stand behind the due time: they are for nobody."""
    is_schedule = one.queue_kind == DELAYED and one.kind is EventKind.ENQUEUED
    return one.detail.partition(" ")[0] if is_schedule and one.detail else one.detail


# All of it ---------------------------------------------------------------------------------------


def _source(hub: Broker, history: HistorySource | None) -> HistorySource:
    if hub.settings.memory:
        raise ApiError(501, "this broker works in memory and keeps no history")
    if history is None:
        raise ApiError(501, "this program does not hand out stored history")
    return history


async def _readable(hub: Broker, user: User) -> frozenset[str] | None:
    """Vhosts all of which this user may read: queues, those that are gone included, and exchanges,
    where messages wait or find no queue. None: all."""
    if "administrator" in user.tags:
        return None
    reader = HistoryReader(hub.settings.data_dir / DATABASE_NAME)
    gone = await reader.gone_queues()
    before = await reader.had_before({name: one.born_ms for name, one in hub.vhosts.items()})
    queues = [
        *gone,
        *((vhost.name, name) for vhost in hub.vhosts.values() for name in vhost.queues),
    ]
    allows, name = hub.users.allows, user.name
    hidden = {vhost for vhost, queue in queues if not allows(name, vhost, Action.GET, queue=queue)}
    return frozenset(
        vhost.name
        for vhost in hub.vhosts.values()
        if hub.users.may_enter(name, vhost.name)
        and vhost.name not in hidden | before
        and all(
            allows(name, vhost.name, Action.SCHEDULE_READ, exchange=one or "amq.default")
            for one in vhost.exchanges
        )
    )


def _no_arrow(error: ImportError) -> ApiError:
    return ApiError(501, f"reading history needs pyarrow: pip install 'leveret[spark]' ({error})")


class HistorySplit(BaseModel):
    from_id: int
    to_id: int
    rows: int = Field(description="At most so many.")
    queue_id: int | None


class HistoryCount(BaseModel):
    rows: int
    bytes: int | None = None
    groups: list[dict[str, str | int | None]] = Field(
        default=[], description="By queue, by queue and event, or by partition, with their `rows`."
    )


class HistoryRanges(BaseModel):
    """A range is its first id and the one after its last."""

    tables: list[str]
    identity: str = Field(description="Other than before: the data directory is another.")
    messages: tuple[int, int]
    events: tuple[int, int]
    logs: dict[int, tuple[int, int]] = Field(description="By the number of the queue.")
    splits: list[HistorySplit] | None = None
    count: HistoryCount | None = None


@router.get(
    "/history/ranges",
    response_model=HistoryRanges,
    dependencies=[require_tag("monitoring")],
)
async def history_ranges(hub: Hub, user: CurrentUser, around: Around, request: Request) -> Row:
    """What history there is, as readers that split it up want to know it."""
    source = _source(hub, around.history)
    params = dict(request.query_params)
    await until_durable(hub)
    allowed = await _readable(hub, user)
    try:
        return await asyncio.to_thread(source.ranges, hub.settings.data_dir, params, allowed)
    except ImportError as error:
        raise _no_arrow(error) from error
    except ValueError as error:
        raise bad_request(str(error)) from error


@router.get(
    "/history/export",
    response_class=StreamingResponse,
    dependencies=[require_tag("monitoring")],
    responses={200: {"content": {ARROW_STREAM: {}}, "description": "An Arrow IPC stream."}},
)
async def history_export(
    hub: Hub,
    user: CurrentUser,
    around: Around,
    request: Request,
    table: Annotated[str, Query(description="messages, events, logs or queues.")],
    from_id: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
    to_id: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
    columns: Annotated[str | None, Query(description="Separated by commas.")] = None,
) -> Response:
    """Rows of one table as an Arrow IPC stream."""
    source = _source(hub, around.history)
    params = dict(request.query_params)
    await until_durable(hub)
    allowed = await _readable(hub, user)
    try:
        pieces, first = await asyncio.to_thread(_begin, source, hub, params, allowed)
    except ImportError as error:
        raise _no_arrow(error) from error
    except ValueError as error:
        raise bad_request(str(error)) from error
    return StreamingResponse(_flow(pieces, first), media_type=ARROW_STREAM)


def _begin(
    source: HistorySource, hub: Broker, params: dict[str, str], vhosts: frozenset[str] | None
) -> tuple[Iterator[bytes], bytes]:
    """The first piece is read before the answer begins, so that failures have a status."""
    pieces = source.export(hub.settings.data_dir, params, vhosts)
    return pieces, next(pieces, b"")


async def _flow(pieces: Iterator[bytes], first: bytes) -> AsyncIterator[bytes]:
    """A reader that hangs up cancels this in mid-read: the read ends before its file is closed."""
    piece: bytes | None = first
    reading: asyncio.Future[bytes | None] | None = None
    try:
        while piece is not None:
            if piece:
                yield piece
            reading = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
            piece = await asyncio.shield(reading)
    finally:
        await asyncio.shield(_close(pieces, reading))


async def _close(pieces: Iterator[bytes], reading: asyncio.Future[bytes | None] | None) -> None:
    if reading is not None:
        await asyncio.wait([reading])
        if not reading.cancelled() and reading.exception() is not None:
            return  # a generator that failed has closed itself
    close = getattr(pieces, "close", None)
    if close is not None:
        await asyncio.to_thread(close)
