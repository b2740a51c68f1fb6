"""Logs and groups as rows of the management API. Read only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queues import LogQueue, PartitionedLog
from queues.log.spec import format_age
from queues.stream import LogGroup

Json = dict[str, Any]
Held = LogQueue | PartitionedLog


def partitions_of(held: Held) -> Sequence[LogQueue]:
    return held.partitions if isinstance(held, PartitionedLog) else [held]


def described_log(vhost: str, held: Held) -> Json:
    logs = partitions_of(held)
    limits = logs[0].log_spec.retention
    return {
        "name": held.name,
        "vhost": vhost,
        "partitioned": isinstance(held, PartitionedLog),
        "arguments": dict(held.spec.arguments),
        "max_age": None if limits.max_age_ms is None else format_age(limits.max_age_ms),
        "max_age_ms": limits.max_age_ms,
        "max_length_bytes": limits.max_bytes,
        "cleanup_policy": "compact" if held.log_spec.compacted else "delete",
        "messages": sum(log.ready_count for log in logs),
        "bytes": sum(log.partition.size for log in logs),
        "consumers": len(held.consumers),
        "groups": sorted(held.readers.groups),
        "partitions": [described_partition(n, log) for n, log in enumerate(logs)],
    }


def described_partition(number: int, log: LogQueue) -> Json:
    return {
        "index": number,
        "queue": log.name,
        "first_offset": log.first_offset,
        "next_offset": log.next_offset,
        "messages": log.ready_count,
        "bytes": log.partition.size,
        "segments": [
            {
                "base_offset": segment.base_offset,
                "next_offset": segment.next_offset,
                "bytes": segment.size,
                "sealed": segment.sealed,
            }
            for segment in log.partition.segments()
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
            for damage in log.partition.damage()
        ],
        "cut_bytes": log.partition.cut_bytes,
        "duplicates": log.duplicates,
        "gaps": log.gaps,
    }


def described_group(group: LogGroup) -> Json:
    parts = []
    for number, log in enumerate(group.logs):
        committed = group.committed(number)
        lag = lag_of(group, number, log) if committed is not None else None
        end = log.next_offset
        parts.append({"partition": number, "committed": committed, "end": end, "lag": lag})
    members = [
        {
            "consumer_tag": member.consumer.tag,
            "connection": _connection(member.consumer.describe()),
            "partitions": member.partitions,
            "unacknowledged": member.unacked,
        }
        for member in group.members
    ]
    return {
        "group": group.name,
        "commit": group.plan.mode.value,
        "commit_interval_ms": group.plan.interval_ms or None,
        "members": members,
        "partitions": parts,
        "lag": sum(part["lag"] or 0 for part in parts),
    }


def _connection(row: Json) -> str:
    return str(row.get("channel_details", {}).get("connection_name", ""))


def lag_of(group: LogGroup, number: int, log: Any) -> int:
    committed = group.committed(number)
    return int(log.next_offset - max(committed or 0, log.first_offset))
