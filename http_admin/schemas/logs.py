"""Logs, their records and consumer groups, and RabbitMQ's stream endpoints."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from leveret.http_admin.schemas.common import MessageProperties
from leveret.http_admin.schemas.fields import JsonTable


class SegmentRow(TypedDict):
    base_offset: int
    next_offset: int
    bytes: int
    sealed: bool


class DamageRow(TypedDict):
    """A part of a segment file that cannot be read, or a missing file (length 0).

    Its records are skipped.
    """

    segment: int
    position: int
    length: int
    first_offset: int
    next_offset: int | None
    reason: str


class PartitionRow(TypedDict):
    index: int
    queue: str
    first_offset: int
    next_offset: int
    messages: int
    bytes: int
    segments: list[SegmentRow]
    damage: list[DamageRow]
    lost: Annotated[int, Field(description="Offsets that are known to be lost.")]
    skipped: Annotated[
        int, Field(description="Lost offsets that consumers have passed since the start.")
    ]
    cut_bytes: Annotated[int, Field(description="Bytes truncated from its end on recovery.")]
    duplicates: Annotated[
        int, Field(description="Records of idempotent producers that were stored already.")
    ]
    gaps: Annotated[int, Field(description="Records refused because earlier ones are missing.")]


class RetentionRow(TypedDict):
    max_age: str | None
    max_length_bytes: int | None


class LogRow(TypedDict):
    name: str
    vhost: str
    partitioned: bool
    arguments: JsonTable
    max_age: str | None
    max_age_ms: int | None
    max_length_bytes: int | None
    cleanup_policy: str
    messages: int
    bytes: int
    consumers: int
    groups: list[str]
    partitions: list[PartitionRow]
    retention: RetentionRow


class PublishedRecords(TypedDict):
    published: int


class RecordRow(TypedDict):
    partition: int
    offset: int
    timestamp: Annotated[int, Field(description="When it was written: Unix time in milliseconds.")]
    exchange: str
    key: str
    value: str
    encoding: str
    headers: JsonTable
    properties: MessageProperties


class RecordRows(TypedDict):
    records: list[RecordRow]


class GroupMember(TypedDict):
    consumer_tag: str
    connection: str
    partitions: list[int]
    unacknowledged: int


class GroupPartition(TypedDict):
    partition: int
    committed: int | None
    end: int
    lag: int


class GroupRow(TypedDict):
    group: str
    commit: Annotated[str, Field(description="When offsets are committed.")]
    commit_interval_ms: int | None
    members: list[GroupMember]
    partitions: list[GroupPartition]
    lag: int


_MoveFrom = TypedDict("_MoveFrom", {"from": int | None})


class OffsetMove(_MoveFrom):
    """`from` is null for a partition in which the group has no offset."""

    partition: int
    to: int


class JoinedMember(TypedDict):
    member: str
    partitions: list[int]


class FetchedRecords(TypedDict):
    records: list[RecordRow]
    partitions: Annotated[list[int], Field(description="The member's partitions at the moment.")]


class CommittedOffsets(TypedDict):
    offsets: Annotated[
        dict[int, int | None], Field(description="Committed offsets of the member's partitions.")
    ]


class Tracking(TypedDict):
    offsets: dict[str, int | None]
    writers: dict[str, int]


class StreamClient(TypedDict):
    """A client of RabbitMQ's stream protocol."""

    name: str
