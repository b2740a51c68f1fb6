"""Prometheus: `/metrics` for everybody who can reach the port, per object for those who may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from http_admin.auth import Hub, require_tag
from http_admin.metrics import gather, identity
from http_admin.metrics_objects import gather_detailed, gather_objects

router = APIRouter(tags=["metrics"], default_response_class=Response)
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
}


class _Gathered(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


async def _written(request: Request, families: Iterable[Metric]) -> Response:
    """Gathered here on the loop, written on another thread."""
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    gathered = _Gathered(families)
    body = await asyncio.to_thread(encode, gathered)
    return Response(body, media_type=kind)


@router.get("/metrics", responses=_TEXT)
async def metrics(request: Request, hub: Hub) -> Response:
    """Sums over everything, in the Prometheus text format; no names of objects."""
    return await _written(request, gather(hub, "aggregated", hub.cluster_name))


@router.get("/metrics/per-object", responses=_TEXT, dependencies=[require_tag("monitoring")])
async def metrics_per_object(request: Request, hub: Hub) -> Response:
    """A sample per queue, exchange and connection."""
    named = identity(hub, "per-object", hub.cluster_name)
    return await _written(request, [*named, *gather_objects(hub)])


@router.get("/metrics/detailed", responses=_TEXT, dependencies=[require_tag("monitoring")])
async def metrics_detailed(
    request: Request,
    hub: Hub,
    family: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    vhost: Annotated[list[str], Query()] = [],  # noqa: B006
    queue: Annotated[list[str], Query()] = [],  # noqa: B006
) -> Response:
    """Samples per object of the families named, for some vhosts or queues only."""
    named = identity(hub, "detailed", hub.cluster_name)
    chosen = gather_detailed(hub, set(family), set(vhost), set(queue))
    return await _written(request, [*named, *chosen])
