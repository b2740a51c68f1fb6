"""Live data for a page: a stream of Server-Sent Events that repeats the views the page shows.

The stream is a loop inside the request. It ends when the client disconnects, when the user's
session ends or its last management tag is removed, or when the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from leveret.http_admin.auth import CurrentUser, can_manage
from leveret.http_admin.context import AppContext, Context
from leveret.http_admin.errors import ApiError, bad_request
from leveret.http_admin.in_process import get_in_process, routed_path_of
from leveret.http_admin.responses import ERROR_RESPONSES

router = APIRouter(prefix="/api", tags=["live"], responses=ERROR_RESPONSES)
PERIOD_SECONDS = 2.0
MAX_VIEWS = 20
MAX_STREAMS = 20
_ENDLESS = ("/api/stream", "/api/history/export")


@router.get("/stream", response_class=StreamingResponse)
async def stream(
    request: Request,
    user: CurrentUser,
    context: Context,
    view: Annotated[list[str], Query(min_length=1, max_length=MAX_VIEWS)],
) -> StreamingResponse:
    """A stream of views that are sent again every two seconds.

    Each `view` is a path of this API; for each, the stream sends an event `view` with
    `{"path": …, "status": …, "body": …}`, at once and every two seconds.
    """
    for path in view:
        _check_view(path)
    if context.streams[user.name] >= MAX_STREAMS:
        raise ApiError(429, f"a user may have at most {MAX_STREAMS} streams")
    return StreamingResponse(
        _events(request, context, view, user.name),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


def _check_view(path: str) -> None:
    if not path.startswith("/api/") or routed_path_of(path) in _ENDLESS:
        raise bad_request(f"view must be a path of the API whose response ends: {path}")


async def _events(
    request: Request, context: AppContext, views: list[str], user: str
) -> AsyncIterator[bytes]:
    if context.streams[user] >= MAX_STREAMS:  # others were started since the check
        return
    context.streams[user] += 1
    try:
        while not context.stopping.is_set():
            for path in views:
                event, status = await _event(request, path)
                yield event
                if status == 401 or not can_manage(request.app.state.broker, user):
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(context.stopping.wait(), PERIOD_SECONDS)
    finally:
        context.streams[user] -= 1
        if not context.streams[user]:
            del context.streams[user]


async def _event(request: Request, path: str) -> tuple[bytes, int]:
    response = await get_in_process(request.app, request, path)
    body = bytes(response.body) if response.is_json else b"null"
    head = orjson.dumps({"path": path, "status": response.status})[:-1]
    event = b"event: view\ndata: " + head + b',"body":' + (body or b"null") + b"}\n\n"
    return event, response.status
