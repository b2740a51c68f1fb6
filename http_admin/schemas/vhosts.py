"""Virtual hosts, policies and parameters."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from leveret.http_admin.schemas.common import ByteCounters, MessageStats, NamedRow, QueueTotals
from leveret.http_admin.schemas.definitions import (
    DefinedGlobalParameter as GlobalParameterRow,
)
from leveret.http_admin.schemas.definitions import (
    DefinedParameter as ParameterRow,
)
from leveret.http_admin.schemas.definitions import (
    DefinedPolicy as PolicyRow,
)

__all__ = ["GlobalParameterRow", "ParameterRow", "PolicyRow", "VhostLimits", "VhostRow"]


class Metadata(TypedDict):
    description: str
    tags: list[str]
    default_queue_type: str


class VhostRow(NamedRow, QueueTotals, ByteCounters):
    description: str
    tags: list[str]
    default_queue_type: str
    protected_from_deletion: bool
    metadata: Metadata
    tracing: bool
    cluster_state: dict[str, str]
    message_stats: NotRequired[MessageStats]


class VhostLimits(TypedDict):
    vhost: str
    value: Annotated[
        dict[str, int], Field(description="max-connections and max-queues; -1 means no limit.")
    ]
