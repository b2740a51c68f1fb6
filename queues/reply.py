"""Direct reply-to: a queue that is only a consumer. Nothing is ever kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leveret.model.history import Keep
from leveret.model.message import Message
from queues.counters import QueueCounters
from queues.entry import Entry, Outcome
from queues.port import Consumer, Enqueued
from queues.spec import QueueSpec


class ReplyQueue:
    """Lives as long as its consumer; replies that cannot be handed on at once wait in order."""

    def __init__(self, name: str) -> None:
        self.spec = QueueSpec(name, exclusive=True, auto_delete=True)
        self.name = name
        self.id = 0
        self.owner: object | None = None
        self.touched = False
        self.counters = QueueCounters()
        self._consumer: Consumer | None = None
        self._waiting: list[Entry] = []

    @property
    def keep(self) -> Keep:
        return Keep.NOTHING

    @property
    def ready_count(self) -> int:
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        """What waits because its consumer does not read."""
        return sum([one.message.header_size + one.message.body_size for one in self._waiting])

    @property
    def unacked_count(self) -> int:
        return 0

    @property
    def consumers(self) -> Sequence[Consumer]:
        return [self._consumer] if self._consumer is not None else []

    def enqueue(self, message: Message) -> Enqueued:
        self._waiting.append(Entry(message))
        return Enqueued.TAKEN

    def dispatch(self) -> None:
        self.touched = False
        consumer = self._consumer
        while consumer is not None and self._waiting and (credit := consumer.credit()) > 0:
            entries = self._waiting[:credit]
            del self._waiting[:credit]
            consumer.deliver(self, entries)

    def when_head(self, call: Callable[[], None]) -> None:
        call()

    def take(self, actor: int, no_ack: bool) -> Entry | None:
        return None

    def settle(self, entries: Sequence[Entry], outcome: Outcome, actor: int) -> None:
        return None

    def add_consumer(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def remove_consumer(self, consumer: Consumer) -> None:
        self._consumer = None
        self._waiting.clear()

    def purge(self) -> int:
        return 0

    def close(self, deleted: bool) -> int:
        self._waiting.clear()
        return 0
