"""Rows of logs, their records and consumer groups."""

from __future__ import annotations

from typing import cast

from leveret.broker.logs.info import (
    GroupInfo,
    GroupMemberInfo,
    GroupPartitionInfo,
    LogInfo,
    PartitionInfo,
)
from leveret.broker.logs.service import LogRecord, OffsetMove, StreamTracking
from leveret.http_admin.content import payload_fields, shown_values
from leveret.http_admin.schemas import logs as schemas
from leveret.http_admin.schemas.common import MessageProperties
from leveret.model.quantities import format_age


def log_row(log: LogInfo) -> schemas.LogRow:
    max_age_ms, max_bytes = log.retention.max_age_ms, log.retention.max_bytes
    max_age = None if max_age_ms is None else format_age(max_age_ms)
    return {
        "name": log.name,
        "vhost": log.vhost,
        "partitioned": log.is_partitioned,
        "arguments": dict(log.arguments),
        "max_age": max_age,
        "max_age_ms": max_age_ms,
        "max_length_bytes": max_bytes,
        "cleanup_policy": "compact" if log.is_compacted else "delete",
        "messages": log.messages,
        "bytes": log.bytes,
        "consumers": log.consumers,
        "groups": list(log.groups),
        "partitions": [_partition_row(partition) for partition in log.partitions],
        "retention": {"max_age": max_age, "max_length_bytes": max_bytes},
    }


def _partition_row(partition: PartitionInfo) -> schemas.PartitionRow:
    return {
        "index": partition.number,
        "queue": partition.queue,
        "first_offset": partition.first_offset,
        "next_offset": partition.next_offset,
        "messages": partition.messages,
        "bytes": partition.bytes,
        "segments": [
            {
                "base_offset": segment.base_offset,
                "next_offset": segment.next_offset,
                "bytes": segment.size,
                "sealed": segment.sealed,
            }
            for segment in partition.segments
        ],
        "damage": [
            {
                "segment": damage.segment,
                "position": damage.position,
                "length": damage.length,
                "first_offset": damage.first_offset,
                "next_offset": damage.next_offset,
                "reason": damage.reason,
            }
            for damage in partition.damage
        ],
        "lost": partition.lost,
        "skipped": partition.skipped,
        "cut_bytes": partition.cut_bytes,
        "duplicates": partition.duplicates,
        "gaps": partition.gaps,
    }


def record_row(record: LogRecord) -> schemas.RecordRow:
    payload = payload_fields(record.body, "auto", None)
    properties = shown_values(record.properties)
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.time_ms,
        "exchange": record.exchange,
        "key": record.key,
        "value": payload["payload"],
        "encoding": payload["payload_encoding"],
        "headers": properties.pop("headers", {}),
        "properties": cast(MessageProperties, properties),
    }


def group_row(group: GroupInfo) -> schemas.GroupRow:
    return {
        "group": group.name,
        "commit": group.plan.mode.value,
        "commit_interval_ms": group.plan.interval_ms or None,
        "members": [_member_row(member) for member in group.members],
        "partitions": [_group_partition_row(partition) for partition in group.partitions],
        "lag": group.lag,
    }


def _group_partition_row(partition: GroupPartitionInfo) -> schemas.GroupPartition:
    return {
        "partition": partition.number,
        "committed": partition.committed,
        "end": partition.next_offset,
        "lag": partition.lag,
    }


def _member_row(member: GroupMemberInfo) -> schemas.GroupMember:
    return {
        "consumer_tag": member.consumer.consumer_tag,
        "connection": member.consumer.connection_name,
        "partitions": list(member.partitions),
        "unacknowledged": member.unacked,
    }


def move_row(move: OffsetMove) -> schemas.OffsetMove:
    return {"partition": move.partition, "from": move.before, "to": move.after}


def tracking_row(tracking: StreamTracking) -> schemas.Tracking:
    return {"offsets": dict(tracking.offsets), "writers": dict(tracking.producers)}
