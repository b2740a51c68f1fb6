"""The audit log: who changed what, from where."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from http_admin.auth import Hub, require_tag

router = APIRouter(prefix="/api", tags=["audit"])
MOST_ENTRIES = 10_000


class AuditEntry(BaseModel):
    time_ms: int
    user: str
    source: str = Field(description="Address and port over AMQP, address over HTTP.")
    via: str = Field(description="AMQP or HTTP.")
    vhost: str
    action: str = Field(description="An AMQP method, or method and path of a request.")
    target: str = Field(description="What it was done to.")
    outcome: str = Field(description="done, or the status of a request that was refused.")


@router.get("/audit", response_model=list[AuditEntry], dependencies=[require_tag()])
async def read_audit(
    hub: Hub,
    count: Annotated[int, Query(ge=1, le=MOST_ENTRIES)] = 100,
    user: str | None = None,
    vhost: str | None = None,
    before: Annotated[int | None, Query(description="Milliseconds since 1970.")] = None,
) -> list[Any]:
    """Changes made over AMQP and HTTP, the newest first."""

    def is_wanted(entry: dict[str, Any]) -> bool:
        return (
            user in (None, entry["user"])
            and vhost in (None, entry["vhost"])
            and (before is None or entry["time_ms"] < before)
        )

    return await hub.access.audit.newest(count, is_wanted)
