"""Prometheus: `/metrics` for everybody who can reach the port, per object for those who may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from http_admin.auth import Hub, require_tag
from http_admin.metrics import gather, identity
from http_admin.metrics_logs import log_totals
from http_admin.metrics_objects import gather_detailed, gather_objects
from http_admin.totals import Sums
from http_admin.turns import InTurn

FAMILIES_AT_ONCE = 4
router = APIRouter(tags=["metrics"], default_response_class=Response)
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
}


_MANY = [require_tag("monitoring"), InTurn]


class _Gathered(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


async def _written(request: Request, families: Iterable[Metric]) -> Response:
    """Gathered here on the loop, family by family; written on another thread."""
    encode, kind = choose_encoder(request.headers.get("accept", ""))
    body = await asyncio.to_thread(encode, _Gathered(await _gathered(families)))
    return Response(body, media_type=kind)


async def _gathered(families: Iterable[Metric]) -> list[Metric]:
    gathered = []
    for number, family in enumerate(families):
        gathered.append(family)
        if number % FAMILIES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return gathered


@router.get("/metrics", responses=_TEXT)
async def metrics(request: Request, hub: Hub, sums: Sums) -> Response:
    """Sums over everything, in the Prometheus text format; no names of objects."""
    return await _written(request, chain(gather(hub, sums), log_totals(hub)))


@router.get("/metrics/per-object", responses=_TEXT, dependencies=_MANY)
async def metrics_per_object(request: Request, hub: Hub, sums: Sums) -> Response:
    """A sample per queue, exchange and connection, and what is nobody's in particular."""
    objects = await _gathered(gather_objects(hub))
    named = {family.name for family in objects}
    others = [one for one in gather(hub, sums, "per-object") if one.name not in named]
    return await _written(request, chain(others, objects))


@router.get("/metrics/detailed", responses=_TEXT, dependencies=_MANY)
async def metrics_detailed(
    request: Request,
    hub: Hub,
    family: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    vhost: Annotated[list[str], Query()] = [],  # noqa: B006
    queue: Annotated[list[str], Query()] = [],  # noqa: B006
) -> Response:
    """Samples per object of the families named, for some vhosts or queues only."""
    named = identity(hub, "detailed")
    chosen = gather_detailed(hub, set(family), set(vhost), set(queue))
    return await _written(request, chain(named, chosen))
