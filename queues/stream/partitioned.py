"""A partitioned log: one name for several partitions, and the place where groups share them.

It holds no records. Consumers without a group read all partitions, each for itself; a group's
members share them. Publishing is normally done through the exchange of the same name; a message
that reaches this queue by name (the default exchange, or a binding to it) is spread here, by the
same rules: its header, its routing key where it is not merely this queue's name, or in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from leveret.model.message import Message
from leveret.model.partitioning import Partitioner
from queues.port import Enqueued
from queues.spec import QueueSpec
from queues.stream.front import LogFront, LogIdentity
from queues.stream.readers import Readers, Surroundings
from queues.stream.records import PARTITION_HEADER
from queues.stream.single import LogQueue
from queues.stream.spec import LogSpec


class PartitionedLog(LogFront):
    def __init__(
        self,
        spec: QueueSpec,
        log_spec: LogSpec,
        identity: LogIdentity,
        partitions: Sequence[LogQueue],
        around: Surroundings,
    ) -> None:
        super().__init__(spec, log_spec, identity, around)
        self.partitions = list(partitions)
        self.readers = Readers(self, identity.where, self.partitions, around)
        self._partitioner = Partitioner(len(partitions))
        for number, partition in enumerate(self.partitions):
            partition.become_partition(self, number)

    def __repr__(self) -> str:
        return f"<PartitionedLog {self.name!r} of {len(self.partitions)}>"

    def part_with(self, logs: Sequence[LogQueue]) -> None:
        """They were there before: logs of their own again, which stay when this one goes."""
        self.partitions = [one for one in self.partitions if one not in logs]
        for one in logs:
            one.become_single()

    def enqueue(self, message: Message) -> Enqueued:
        explicit = message.headers().get(PARTITION_HEADER)
        if isinstance(explicit, bool) or not isinstance(explicit, int | None):
            return Enqueued.REJECTED
        if explicit is not None and not 0 <= explicit < len(self.partitions):
            return Enqueued.REJECTED
        key = message.routing_key if message.routing_key != self.name else ""
        return self.partitions[self._partitioner.choose(key.encode(), explicit)].enqueue(message)
