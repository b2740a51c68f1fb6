"""Logs and consumer groups as frozen values for management. Read only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leveret.model.clients import ConsumerInfo
from leveret.queues.log.consumer_group import CommitPlan, ConsumerGroup
from leveret.queues.log.cursor import ReadablePartition
from leveret.queues.log.files import Damage, RetentionLimits
from leveret.queues.log.files.segment import SegmentInfo
from leveret.queues.log.log_queue import AnyLog, LogQueue, maybe_log
from leveret.queues.port import Queue


def top_level_logs(queues: Iterable[Queue]) -> Iterator[AnyLog]:
    """The logs among these queues; a partitioned one counts as one log."""
    for queue in queues:
        log = maybe_log(queue)
        if log is not None and log.partition_of is None:
            yield log


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`cut_bytes`: removed at the last start because their batch was incomplete.

    `lost`: offsets of damaged batches and missing files, as far as they are known; `skipped`: how
    many of them consumers have passed since the start, each of them counted.
    """

    number: int
    queue: str
    first_offset: int
    next_offset: int
    bytes: int
    segments: Sequence[SegmentInfo]
    messages: int
    damage: Sequence[Damage]
    lost: int
    skipped: int
    cut_bytes: int
    duplicates: int
    gaps: int


@dataclass(frozen=True, slots=True)
class LogInfo:
    name: str
    vhost: str
    is_partitioned: bool
    arguments: Mapping[str, Any]
    retention: RetentionLimits
    is_compacted: bool
    consumers: int
    groups: Sequence[str]
    partitions: Sequence[PartitionInfo]

    @property
    def messages(self) -> int:
        return sum(partition.messages for partition in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(partition.bytes for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class GroupPartitionInfo:
    """`committed` is None for a partition that the group never read; it lags by all records."""

    number: int
    committed: int | None
    next_offset: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    consumer: ConsumerInfo
    partitions: Sequence[int]
    unacked: int


@dataclass(frozen=True, slots=True)
class GroupInfo:
    name: str
    plan: CommitPlan
    members: Sequence[GroupMemberInfo]
    partitions: Sequence[GroupPartitionInfo]

    @property
    def lag(self) -> int:
        """Of the partitions that the group has read."""
        return sum(part.lag for part in self.partitions if part.committed is not None)


def log_info(vhost: str, log: AnyLog) -> LogInfo:
    partitions = log.all_partitions()
    return LogInfo(
        name=log.name,
        vhost=vhost,
        is_partitioned=log.is_partitioned,
        arguments=dict(log.spec.arguments),
        retention=partitions[0].log_spec.retention,
        is_compacted=log.log_spec.compacted,
        consumers=len(log.consumers),
        groups=sorted(log.readers.groups),
        partitions=[partition_info(n, partition) for n, partition in enumerate(partitions)],
    )


def partition_info(number: int, log: LogQueue) -> PartitionInfo:
    return PartitionInfo(
        number=number,
        queue=log.name,
        first_offset=log.first_offset,
        next_offset=log.next_offset,
        bytes=log.partition.size,
        segments=log.partition.segments(),
        messages=log.ready_count,
        damage=log.partition.damage(),
        lost=log.partition.view.count_lost(0, log.next_offset),
        skipped=log.skipped,
        cut_bytes=log.partition.cut_bytes,
        duplicates=log.duplicates,
        gaps=log.gaps,
    )


def group_info(group: ConsumerGroup) -> GroupInfo:
    return GroupInfo(
        name=group.name,
        plan=group.plan,
        members=[
            GroupMemberInfo(member.consumer.info(), member.partitions, member.unacked)
            for member in group.members
        ],
        partitions=[
            GroupPartitionInfo(
                number, group.committed(number), log.next_offset, group_lag(group, number, log)
            )
            for number, log in enumerate(group.logs)
        ],
    )


def group_lag(group: ConsumerGroup, number: int, log: ReadablePartition) -> int:
    """Records that the group has not committed."""
    return log.count_records(max(group.committed(number) or 0, log.first_offset))
