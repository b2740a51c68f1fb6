"""The audit log: which user changed what, and from where."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from leveret.http_admin.auth import AppBroker, require_tag
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import rows_response
from leveret.http_admin.responses import ERROR_RESPONSES
from leveret.http_admin.schemas.access import AuditEntry

router = APIRouter(prefix="/api", tags=["audit"], responses=ERROR_RESPONSES)
MAX_ENTRIES = 10_000


@router.get("/audit", response_model=list[AuditEntry], dependencies=[require_tag()])
async def read_audit(
    broker: AppBroker,
    count: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = 100,
    user: str | None = None,
    vhost: str | None = None,
    before: Annotated[int | None, Query(description="Unix time in milliseconds.")] = None,
) -> FastJsonResponse:
    """Changes made over AMQP and HTTP, the newest first."""

    def is_match(entry: dict[str, Any]) -> bool:
        return (
            user in (None, entry["user"])
            and vhost in (None, entry["vhost"])
            and (before is None or entry["time_ms"] < before)
        )

    entries = await broker.audit.newest(count, is_match)
    return await rows_response(entries, lambda entry: entry)
