"""A partitioned log: one name for several partitions, and the place where groups share them.

It holds no records. Consumers without a group read all partitions, each for itself; a group's
members share them. Publishing is normally done through the exchange of the same name; a message
that reaches this queue by name (the default exchange, or a binding to it) is spread here, by the
same rules: its header, its routing key where it is not merely this queue's name, or in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leveret.model.errors import NotImplementedHere
from leveret.model.history import Keep
from leveret.model.message import Message
from leveret.model.partitioning import Partitioner
from queues.counters import QueueCounters
from queues.entry import Entry, Outcome
from queues.port import Consumer, Enqueued
from queues.spec import QueueSpec
from queues.stream.readers import Readers, Surroundings
from queues.stream.records import PARTITION_HEADER
from queues.stream.single import LogIdentity, LogQueue
from queues.stream.spec import LogSpec


class PartitionedLog:
    def __init__(
        self,
        spec: QueueSpec,
        log_spec: LogSpec,
        identity: LogIdentity,
        partitions: Sequence[LogQueue],
        around: Surroundings,
    ) -> None:
        self.spec = spec
        self.log_spec = log_spec
        self.name = spec.name
        self.id = identity.id
        self.owner: object | None = None
        self.touched = False
        self.is_closed = False
        self.counters = QueueCounters()
        self.keep = Keep.NOTHING  # a log is its own history
        self.partitions = list(partitions)
        self.readers = Readers(self, identity.where, self.partitions, around)
        self._partitioner = Partitioner(len(partitions))
        self._where = identity.where
        for number, partition in enumerate(self.partitions):
            partition.become_partition(self, number)

    def __repr__(self) -> str:
        return f"<PartitionedLog {self.name!r} of {len(self.partitions)}>"

    def enqueue(self, message: Message) -> Enqueued:
        explicit = message.headers().get(PARTITION_HEADER)
        if isinstance(explicit, bool) or not isinstance(explicit, int | None):
            return Enqueued.REJECTED
        if explicit is not None and not 0 <= explicit < len(self.partitions):
            return Enqueued.REJECTED
        key = message.routing_key if message.routing_key != self.name else ""
        return self.partitions[self._partitioner.choose(key.encode(), explicit)].enqueue(message)

    def dispatch(self) -> None:
        self.touched = False
        self.readers.serve()

    def settle(self, entries: Sequence[Entry], outcome: Outcome, actor: int) -> None:
        held = self.readers.settle(entries, outcome)
        if outcome is Outcome.ACK:
            self.counters.acked += held

    def add_consumer(self, consumer: Consumer) -> None:
        self.readers.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.readers.remove(consumer)

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self.readers.consumers

    @property
    def ready_count(self) -> int:
        """Nothing of its own: the partitions count what they hold."""
        return 0

    @property
    def unacked_count(self) -> int:
        return self.readers.unacked

    def take(self, actor: int, no_ack: bool) -> Entry | None:
        raise NotImplementedHere(f"basic.get not supported by stream queues {self._where}")

    def when_head(self, call: Callable[[], None]) -> None:
        call()

    def purge(self) -> int:
        raise NotImplementedHere(f"queue.purge not supported by stream queues {self._where}")

    def close(self, deleted: bool) -> int:
        self.is_closed = True
        if deleted:
            self.readers.cancel_all()
            for name in list(self.readers.groups):
                self.readers.forget_group(name)
        else:
            self.readers.close()
        return 0
