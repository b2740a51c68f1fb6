"""Direct reply-to: a queue that belongs to one consumer. It never stores anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leveret.model.history import Keep
from leveret.model.message import Message
from leveret.model.run import Run
from leveret.queues.classic.ready import FifoReady
from leveret.queues.counters import QueueCounters
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Outcome
from leveret.queues.port import Consumer, EnqueueResult, PeekedMessages, QueueStats, Tap
from leveret.queues.spec import QueueSpec


class ReplyQueue:
    """Lives as long as its consumer. Replies wait in order until the consumer has credit."""

    failure = None
    partition_of = None
    partitions = ()
    active_consumer = None
    consumer_timeout_ms = 0
    blocks_get = waits_for_lease = False
    keep = Keep.NOTHING

    def __init__(self, name: str) -> None:
        self.spec = QueueSpec(name, exclusive=True, auto_delete=True)
        self.name = name
        self.id = 0
        self.owner: object | None = None
        self.dispatch_pending = False
        self.counters = QueueCounters()
        self.tap: Tap | None = None
        self._consumer: Consumer | None = None
        self._waiting = FifoReady()

    @property
    def ready_count(self) -> int:
        return len(self._waiting)

    @property
    def unacked_count(self) -> int:
        return 0

    @property
    def consumers(self) -> Sequence[Consumer]:
        return [self._consumer] if self._consumer is not None else []

    # Messages ----------------------------------------------------------------------------------

    def enqueue(self, run: Run) -> list[EnqueueResult] | None:
        self._waiting.append_run(run)
        return None

    def stores_content(self, persistent: bool) -> bool:
        return False

    def rejects_dead_letter(self, message: Message) -> bool:
        return False

    def mark_redelivered(self, message_id: int) -> None:
        return None

    def dispatch(self) -> None:
        self.dispatch_pending = False
        consumer = self._consumer
        while consumer is not None and self._waiting and (credit := consumer.credit()) > 0:
            consumer.deliver(Delivery(self, consumer, self._waiting.take(credit, sys.maxsize)))

    def basic_get(self, actor: int, no_ack: bool) -> Delivery | None:
        return None

    def when_readable(self, callback: Callable[[], None]) -> None:
        callback()

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome, actor: int) -> None:
        return None

    def on_split(self, delivery: Delivery) -> None:
        return None

    def purge(self) -> int:
        return 0

    # The consumer ------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def remove_consumer(self, consumer: Consumer) -> None:
        self._consumer = None
        self._waiting.clear()

    def on_credit(self, consumer: Consumer) -> None:
        self.dispatch()

    def close(self, deleted: bool) -> int:
        self._waiting.clear()
        return 0

    # What does not apply to a reply queue ------------------------------------------------------

    def apply_policy(self, policy: Mapping[str, Any], history: Keep) -> None:
        return None

    def on_lookup(self) -> None:
        return None

    def deliver_pending(self) -> None:
        self.dispatch()

    def stats(self) -> QueueStats | None:
        return None

    def oldest_ready_ms(self) -> int | None:
        return None

    def oldest_unacked_ms(self) -> int | None:
        return None

    def peek(self, offset: int, count: int) -> PeekedMessages:
        return PeekedMessages([], 0)

    # Memory ------------------------------------------------------------------------------------

    def memory_bytes(self) -> int:
        """Bytes of replies that the consumer has not read."""
        return sum([entry.message.content_size for entry in self._waiting])

    def header_bytes(self) -> int:
        return 0
