"""Live data for a page: one stream of Server-Sent Events that carries the views it shows.

A stream costs something only while somebody reads it: it is a loop inside the request, which ends
with the client, with the user's session or last management tag, or with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from http_admin.auth import CurrentUser, may_manage
from http_admin.errors import ApiError, bad_request
from http_admin.inside import ask_inside, meant_path
from http_admin.surroundings import Around, Surroundings

router = APIRouter(prefix="/api", tags=["live"])
PERIOD_SECONDS = 2.0
MOST_VIEWS = 20
MOST_STREAMS = 20
_ENDLESS = ("/api/stream", "/api/history/export")


@router.get("/stream", response_class=StreamingResponse)
async def stream(
    request: Request,
    user: CurrentUser,
    around: Around,
    view: Annotated[list[str], Query(min_length=1, max_length=MOST_VIEWS)],
) -> StreamingResponse:
    """Views that renew themselves.

    Each `view` is a path of this API; the stream sends an event `view` with
    `{"path": …, "status": …, "body": …}` for each, at once and every two seconds.
    """
    for path in view:
        _check(path)
    if around.streams[user.name] >= MOST_STREAMS:
        raise ApiError(429, f"no more than {MOST_STREAMS} streams per user")
    return StreamingResponse(
        _events(request, around, view, user.name),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


def _check(path: str) -> None:
    if not path.startswith("/api/") or meant_path(path) in _ENDLESS:
        raise bad_request(f"view must be a path of the API that ends: {path}")


async def _events(
    request: Request, around: Surroundings, views: list[str], user: str
) -> AsyncIterator[bytes]:
    if around.streams[user] >= MOST_STREAMS:  # others came in the same moment
        return
    around.streams[user] += 1
    try:
        while not around.stopping.is_set():
            for path in views:
                event, status = await _event(request, path)
                yield event
                if status == 401 or not may_manage(request.app.state.broker, user):
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(around.stopping.wait(), PERIOD_SECONDS)
    finally:
        around.streams[user] -= 1
        if not around.streams[user]:
            del around.streams[user]


async def _event(request: Request, path: str) -> tuple[bytes, int]:
    answer = await ask_inside(request.app, request, path)
    body = bytes(answer.body) if answer.is_json else b"null"
    head = orjson.dumps({"path": path, "status": answer.status})[:-1]
    return b"event: view\ndata: " + head + b',"body":' + (body or b"null") + b"}\n\n", answer.status
