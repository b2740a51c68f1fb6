"""Log mode: partitioned, replayable logs in append-only segment files.

`Partition` writes and reads one log, `LogReader` reads it from another process, `Group` shares
the partitions of a log among consumers.  Nothing here knows AMQP, SQLite or the event loop.
The format on disk is described in docs/log-mode.md.
"""

from queues.log.batch import Batch, Entry, ProducerMark, Record
from queues.log.compaction import compact
from queues.log.errors import Damage, LogError, LogFailed, SpecError
from queues.log.groups import CommitMode, Group, Lease
from queues.log.partition import Partition, PartitionSettings
from queues.log.producers import ProducerTable, Verdict
from queues.log.reader import LogReader
from queues.log.retention import Retention, apply_retention
from queues.log.sink import FoundingSink, Numbered, PartitionSink, RetentionSink, SyncSink
from queues.log.spec import (
    OffsetSpec,
    parse_interval,
    parse_max_age,
    parse_offset_spec,
    resolve_offset,
)

__all__ = [
    "Batch",
    "CommitMode",
    "Damage",
    "Entry",
    "FoundingSink",
    "Group",
    "Lease",
    "LogError",
    "LogFailed",
    "LogReader",
    "Numbered",
    "OffsetSpec",
    "Partition",
    "PartitionSettings",
    "PartitionSink",
    "ProducerMark",
    "ProducerTable",
    "Record",
    "Retention",
    "RetentionSink",
    "SpecError",
    "SyncSink",
    "Verdict",
    "apply_retention",
    "compact",
    "parse_interval",
    "parse_max_age",
    "parse_offset_spec",
    "resolve_offset",
]
