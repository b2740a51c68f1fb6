"""The files of a log: append-only segments with their indexes.

`Partition` writes and reads one log, `LogReader` reads it from another process. Nothing here
knows AMQP, SQLite or the event loop.
The format on disk is described in docs/log-mode.md.
"""

from leveret.queues.log.files.batch import Batch, ProducerSequence, RawRecord, Record
from leveret.queues.log.files.compaction import compact
from leveret.queues.log.files.errors import Damage, LogError, LogFailed, SpecError
from leveret.queues.log.files.partition import Partition, PartitionSettings
from leveret.queues.log.files.producers import ProducerState, SequenceResult
from leveret.queues.log.files.reader import LogReader
from leveret.queues.log.files.recovery import RecordedEnd
from leveret.queues.log.files.retention import RetentionLimits, apply_retention
from leveret.queues.log.files.writer_jobs import (
    ApplyRetention,
    CreateFiles,
    ParentDirectories,
    PartitionSink,
    SyncLog,
)

__all__ = [
    "ApplyRetention",
    "Batch",
    "CreateFiles",
    "Damage",
    "LogError",
    "LogFailed",
    "LogReader",
    "ParentDirectories",
    "Partition",
    "PartitionSettings",
    "PartitionSink",
    "ProducerSequence",
    "ProducerState",
    "RawRecord",
    "Record",
    "RecordedEnd",
    "RetentionLimits",
    "SequenceResult",
    "SpecError",
    "SyncLog",
    "apply_retention",
    "compact",
]
