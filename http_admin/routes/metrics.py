"""Prometheus: `/metrics` needs no login; metrics per object need the tag monitoring."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from leveret.broker.runtime.slices import run_in_slices
from leveret.http_admin.auth import AppBroker, require_tag
from leveret.http_admin.json_response import PartsResponse
from leveret.http_admin.metrics.aggregate import (
    aggregate_metrics,
    channel_totals,
    identity_metrics,
)
from leveret.http_admin.metrics.logs import log_families, log_totals
from leveret.http_admin.metrics.objects import Selection, object_families
from leveret.http_admin.metrics.text import ObjectFamily, encode_metrics, encode_objects
from leveret.http_admin.middleware.concurrency import ResponseSlot
from leveret.http_admin.responses import ERROR_RESPONSES
from leveret.http_admin.rows.totals import BrokerTotals

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
}
_RESPONSES = ERROR_RESPONSES | _TEXT
router = APIRouter(tags=["metrics"], default_response_class=Response, responses=_RESPONSES)
_PER_OBJECT = [require_tag("monitoring"), ResponseSlot]


async def _respond(
    request: Request, families: Iterable[Metric], objects: Iterable[ObjectFamily] = ()
) -> Response:
    """Collect on the loop, one family at a time; the library encodes on another thread."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    parts = await run_in_slices(encode_objects(encode, objects))
    collected = await _collect(families)
    parts.append(await asyncio.to_thread(encode_metrics, encode, collected))
    return PartsResponse(parts, media_type=content_type)


async def _collect(families: Iterable[Metric]) -> list[Metric]:
    collected = []
    for family in families:
        collected.append(family)
        await asyncio.sleep(0)
    return collected


@router.get("/metrics")
async def metrics(request: Request, broker: AppBroker, totals: BrokerTotals) -> Response:
    """Sums over all objects in the Prometheus text format, without names of objects."""
    channels = await run_in_slices(channel_totals(broker))
    sums = aggregate_metrics(broker, totals, channels)
    return await _respond(request, chain(sums, log_totals(broker)))


@router.get("/metrics/per-object", dependencies=_PER_OBJECT)
async def metrics_per_object(request: Request, broker: AppBroker, totals: BrokerTotals) -> Response:
    """A sample for each queue, exchange, connection and channel, and of the whole broker."""
    objects = await run_in_slices(object_families(broker, Selection("rabbitmq_", "leveret_")))
    logs = await _collect(log_families(broker, Selection("rabbitmq_", "leveret_")))
    channels = await run_in_slices(channel_totals(broker))
    names = {family.name for family in objects} | {family.name for family in logs}
    sums = aggregate_metrics(broker, totals, channels, "per-object")
    others = (family for family in sums if family.name not in names)
    return await _respond(request, chain(others, logs), objects)


@router.get("/metrics/detailed", dependencies=_PER_OBJECT)
async def metrics_detailed(
    request: Request,
    broker: AppBroker,
    family: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    vhost: Annotated[list[str], Query()] = [],  # noqa: B006
    queue: Annotated[list[str], Query()] = [],  # noqa: B006
) -> Response:
    """Samples per object of the named families, optionally of some vhosts or queues only."""
    selection = Selection(
        "rabbitmq_detailed_",
        "leveret_detailed_",
        frozenset(family),
        frozenset(vhost),
        frozenset(queue),
    )
    objects = await run_in_slices(object_families(broker, selection))
    others = chain(identity_metrics(broker, "detailed"), log_families(broker, selection))
    return await _respond(request, others, objects)
