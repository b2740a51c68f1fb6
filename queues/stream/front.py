"""What a log and a partitioned log have in common: who reads, and what neither of them can do.

Both hand out through `Readers`; nothing is ever taken away, so there is nothing to poll or purge.
Event-loop thread only; a crash forgets everything here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from leveret.model.errors import BrokerError, NotImplementedHere
from leveret.model.history import Keep
from queues.counters import QueueCounters
from queues.entry import Entry, Outcome
from queues.port import Consumer, Tap
from queues.spec import QueueSpec
from queues.stream.readers import Readers, Surroundings
from queues.stream.spec import LogSpec


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What a log is: its number among the queues, and how refusals name it."""

    id: int
    where: str


class LogFront:
    """`log_spec` is what holds now: as declared, and as policies will have it."""

    readers: Readers

    def __init__(
        self, spec: QueueSpec, log_spec: LogSpec, identity: LogIdentity, around: Surroundings
    ) -> None:
        self.spec = spec
        self.log_spec = log_spec
        self.name = spec.name
        self.id = identity.id
        self.owner: object | None = None
        self.touched = False
        self.is_closed = False
        self.failure: BrokerError | None = None
        """Why its files could not be made, for those who wait to hear that it is there."""
        self.counters = QueueCounters()
        self.tap: Tap | None = None
        self.keep = Keep.NOTHING  # a log is its own history
        self.where = identity.where
        self._around = around

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
    def consumers(self) -> Collection[Consumer]:
        return self.readers.consumers

    @property
    def ready_count(self) -> int:
        """Nothing of its own: partitions count what they hold."""
        return 0

    @property
    def unacked_count(self) -> int:
        return self.readers.unacked

    def take(self, actor: int, no_ack: bool) -> Entry | None:
        raise NotImplementedHere(f"basic.get not supported by stream queues {self.where}")

    def when_head(self, call: Callable[[], None]) -> None:
        call()

    def purge(self) -> int:
        raise NotImplementedHere(f"queue.purge not supported by stream queues {self.where}")

    def close(self, deleted: bool) -> int:
        gone = self.ready_count
        self.is_closed = True
        if deleted:
            self.readers.cancel_all()
            for name in list(self.readers.groups):
                self.readers.forget_group(name)
            self.readers.let_go()
        else:
            self.readers.close()
        return gone
