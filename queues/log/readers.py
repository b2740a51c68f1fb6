"""The readers of one log: consumers on their own, and consumer groups.

Both kinds of log use this: `LogQueue` (one partition) and `PartitionedLog` (several). It also makes
the demands that RabbitMQ makes of a stream consumer, in its words: a prefetch count of its own and
manual acknowledgement.

There may be thousands of readers and of cursors. So only readers that may have something to deliver
are looked at, in turn, one batch each, and the rest waits for the next tick when the time is up.
Event-loop thread only; a crash loses everything here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from leveret.model.errors import NotImplementedHere, PreconditionFailed
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Entry, Outcome
from leveret.queues.log.consumer_group import (
    DEFAULT_COMMIT_INTERVAL_MS,
    CommitPlan,
    ConsumerGroup,
    SaveOffset,
)
from leveret.queues.log.cursor import Cursor, ReadablePartition, ReadAheadBudget
from leveret.queues.log.deliveries import LogEntry
from leveret.queues.log.files import SpecError
from leveret.queues.log.filter import FILTER_ARGUMENT, RecordFilter, maybe_filter
from leveret.queues.log.group_coordinator import CommitMode, PartitionAssignment
from leveret.queues.log.rebalance_notifications import RebalanceEntry, RebalanceNotifier
from leveret.queues.log.spec import OffsetSpec, parse_offset_spec, resolve_offset
from leveret.queues.port import Consumer, Queue

GROUP_ARGUMENT = "x-group"
COMMIT_ARGUMENT = "x-commit"
INTERVAL_ARGUMENT = "x-commit-interval"
OFFSET_ARGUMENT = "x-stream-offset"
NOTIFY_ARGUMENT = "x-rebalance-notify"
REBALANCE_TIMEOUT_ARGUMENT = "x-rebalance-timeout"
MAX_COMMIT_INTERVAL_MS = 3_600_000
DEFAULT_REBALANCE_TIMEOUT_MS = 30_000
MAX_REBALANCE_TIMEOUT_MS = 3_600_000
MAX_POSITIONS = 50_000
"""Per log: each group and each consumer without a group has one position per partition."""

SERVE_SECONDS = 0.001
"""Time per tick for the readers of one log."""

WhenDurable = Callable[[Callable[[], None]], None]
"""Call back when everything added to the store's batch so far is on disk."""


@dataclass(frozen=True, slots=True)
class LogContext:
    """The parts of the broker that a log uses."""

    mark_ready: Callable[[Queue], None]
    save_offset: SaveOffset
    delete_offset: Callable[[int, str], None]
    when_durable: WhenDurable
    now_ms: Callable[[], int]
    monotonic: Callable[[], float]
    read_ahead: ReadAheadBudget


class ConsumerReader:
    """One consumer of a log. Its cursors share its credit and take turns.

    `group` is None for a consumer on its own. `ready_readers` holds the log's readers that may have
    something to deliver, next one first. `notifier` is for a group member that wants to know its
    partitions.
    """

    def __init__(
        self,
        queue: Queue,
        consumer: Consumer,
        when_durable: WhenDurable,
        ready_readers: deque[ConsumerReader],
        group: ConsumerGroup | None = None,
        notifier: RebalanceNotifier | None = None,
    ) -> None:
        self.consumer = consumer
        self.group = group
        self.notifier = notifier
        self.cursors: dict[Cursor, None] = {}
        self._ready_cursors: deque[Cursor] = deque()
        """Cursors that may have records, next one first; also some that were closed meanwhile."""
        self.unacked = 0
        self.is_closed = False
        self._queue = queue
        self._when_durable = when_durable
        self._ready_readers = ready_readers
        self._is_ready = False
        self._waiting_for_commit = 0
        """Entries taken from a cursor whose offset is being saved before they are delivered."""

    def __repr__(self) -> str:
        return f"<ConsumerReader of {self.consumer.tag!r}, {len(self.cursors)} cursors>"

    @property
    def partitions(self) -> list[int]:
        """The partitions assigned to it in its group."""
        return sorted(cursor.assignment.partition for cursor in self.cursors if cursor.assignment)

    def add_cursor(self, cursor: Cursor) -> None:
        cursor.reader = self
        self.cursors[cursor] = None
        self.on_cursor_ready(cursor)

    def remove_cursor(self, cursor: Cursor) -> None:
        cursor.close()
        self.cursors.pop(cursor, None)

    def on_cursor_ready(self, cursor: Cursor) -> None:
        """The cursor may have records."""
        if not cursor.is_queued:
            cursor.is_queued = True
            self._ready_cursors.append(cursor)
        self.wake()

    def wake(self) -> None:
        """It may have something to deliver, or credit again: serve it with the log's next ones."""
        if not self._is_ready and not self.is_closed:
            self._is_ready = True
            self._ready_readers.append(self)

    # Rebalances

    def must_release(self, assignment: PartitionAssignment[ConsumerReader]) -> bool:
        return self.notifier is not None and self.notifier.must_release(assignment)

    @property
    def release_seconds(self) -> float:
        return self.notifier.timeout_ms / 1000 if self.notifier is not None else 0.0

    def notify_later(self) -> None:
        """Its partitions have changed: if it wants to know, tell it when it is served next."""
        if self.notifier is not None:
            self.notifier.is_due = True
            self.wake()

    def _notify(self, notifier: RebalanceNotifier) -> bool:
        """Deliver notifications, whatever the credit. False if they have to wait, and with them
        the records that come after them."""
        if self._waiting_for_commit or self.group is None or not self.consumer.is_writable:
            return False
        owned = self.group.assignments(self)
        for entry in notifier.notifications(self, self.group.generation, owned):
            self.consumer.deliver(Delivery(self._queue, self.consumer, [entry]))
        return True

    # Deliveries

    def serve(self) -> None:
        """Deliver one batch; if there may be more, it is ready again."""
        self._is_ready = False
        notifier = self.notifier
        if notifier is not None and notifier.is_due and not self._notify(notifier):
            return
        credit = self.consumer.credit() - self._waiting_for_commit
        if credit <= 0:
            return  # `wake` is called when it has credit
        entries = self._take(credit)
        if not entries:
            return
        if self.group is None or self.group.on_deliver(entries):
            self._deliver(entries)
        else:
            self._deliver_when_durable(entries)
        if self._ready_cursors:
            self.wake()

    def _take(self, credit: int) -> list[LogEntry]:
        cursors = self._ready_cursors
        while cursors:
            cursor = cursors.popleft()
            cursor.is_queued = False
            if cursor.is_closed:
                continue
            entries = cursor.take(credit)
            if entries:
                cursor.is_queued = True
                cursors.append(cursor)
                return entries
            cursor.sleep()
        return []

    def _deliver(self, entries: Sequence[LogEntry]) -> None:
        self.unacked += len(entries)
        delivery = Delivery(self._queue, self.consumer, entries)
        self._queue.counters.delivered(delivery, no_ack=False)
        self.consumer.deliver(delivery)
        if self._queue.tap is not None:
            self._queue.tap(self._queue, entries, self.consumer)

    def _deliver_when_durable(self, entries: Sequence[LogEntry]) -> None:
        """At most once: after a crash between commit and delivery the records are not repeated."""
        self._waiting_for_commit += len(entries)

        def deliver() -> None:
            self._waiting_for_commit -= len(entries)
            if not self.is_closed:
                self._deliver(entries)
                self._queue.on_credit(self.consumer)  # a notification may have waited

        self._when_durable(deliver)

    def close(self) -> None:
        self.is_closed = True
        for cursor in self.cursors:
            cursor.close()
        self.cursors.clear()
        self._ready_cursors.clear()
        self.notifier = None  # it refers to this reader through its assignments


class Readers:
    """All consumers and groups of one log; `full_name` is how error texts name the log."""

    def __init__(
        self,
        queue: Queue,
        full_name: str,
        logs: Sequence[ReadablePartition],
        context: LogContext,
    ) -> None:
        self._queue = queue
        self._full_name = full_name
        self._logs = logs
        self._context = context
        self._by_consumer: dict[Consumer, ConsumerReader] = {}
        self._ready: deque[ConsumerReader] = deque()
        self._unbalanced: dict[ConsumerGroup, None] = {}
        """Groups to rebalance at the end of the loop iteration."""
        self._without_group = 0
        self.groups: dict[str, ConsumerGroup] = {}

    def __len__(self) -> int:
        return len(self._by_consumer)

    @property
    def consumers(self) -> Collection[Consumer]:
        return self._by_consumer.keys()

    def maybe_reader(self, consumer: Consumer) -> ConsumerReader | None:
        """The consumer's reader, with its current partitions."""
        reader = self._by_consumer.get(consumer)
        if reader is not None and reader.group in self._unbalanced:
            del self._unbalanced[reader.group]
            reader.group.rebalance()
        return reader

    @property
    def unacked(self) -> int:
        return sum(reader.unacked for reader in self._by_consumer.values())

    def lags(self) -> Iterator[tuple[ReadablePartition, int]]:
        """For each cursor: its partition, and the number of records it has not delivered."""
        for reader in self._by_consumer.values():
            for cursor in reader.cursors:
                yield cursor.log, cursor.log.count_records(cursor.position)

    # Consumers -----------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        self._check(consumer)
        start = self._start_offset(consumer.arguments)
        name = consumer.arguments.get(GROUP_ARGUMENT)
        record_filter = self._maybe_filter(consumer.arguments)
        if name is None:
            if NOTIFY_ARGUMENT in consumer.arguments:
                raise self._invalid(NOTIFY_ARGUMENT, "only members of a group (x-group) can use it")
            self._add_single(consumer, start, record_filter)
        elif record_filter is not None:
            raise self._invalid(
                FILTER_ARGUMENT, "members of a group cannot filter: a group reads whole partitions"
            )
        else:
            self._add_member(consumer, start, self._group_name(name))
        self._wake()

    def _add_single(
        self, consumer: Consumer, start: OffsetSpec, record_filter: RecordFilter | None
    ) -> None:
        self._require_room()
        reader = ConsumerReader(self._queue, consumer, self._context.when_durable, self._ready)
        for log in self._logs:
            position = resolve_offset(start, log, self._context.now_ms())
            reader.add_cursor(Cursor(log, position, self._wake, filter=record_filter))
        self._by_consumer[consumer] = reader
        self._without_group += 1

    def _require_room(self) -> None:
        limit = MAX_POSITIONS // len(self._logs)
        if self._without_group + len(self.groups) >= limit:
            raise PreconditionFailed(
                f"{self._full_name} has {limit} groups and consumers without a group, which is "
                "the maximum for its number of partitions"
            )

    def _add_member(self, consumer: Consumer, start: OffsetSpec, name: str) -> None:
        plan = self._commit_plan(consumer.arguments)
        notifier = self._maybe_notifier(consumer.arguments, name)
        group = self.group(name)
        member = ConsumerReader(
            self._queue, consumer, self._context.when_durable, self._ready, group, notifier
        )
        group.join(member, start, plan)
        self._unbalanced[group] = None
        self._by_consumer[consumer] = member

    def remove(self, consumer: Consumer) -> None:
        reader = self._by_consumer.pop(consumer, None)
        if reader is not None:
            if reader.group is not None:
                reader.group.leave(reader)
                self._unbalanced[reader.group] = None
            else:
                self._without_group -= 1
            reader.close()

    def cancel_all(self) -> None:
        """The log was deleted."""
        for consumer in list(self._by_consumer):
            self.remove(consumer)
            consumer.cancelled()

    def close(self) -> None:
        """The broker stops; saved offsets stay."""
        self._unbalanced.clear()
        for reader in self._by_consumer.values():
            reader.close()
        for group in self.groups.values():
            group.close()

    def break_cycles(self) -> None:
        """Drop the groups of the deleted log, and the references to the log, which refers to this.

        The store deletes the groups' offsets together with the partitions.
        """
        for name in list(self.groups):
            self._remove_group(name)
        self._queue, self._logs = cast(Queue, None), ()
        self._ready.clear()

    # Deliveries ----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serve the readers that are ready, in turn; after a while, leave the rest to a later tick.

        One batch each, so that a reader with a long backlog delays the others little.
        """
        ready, now = self._ready, self._context.monotonic
        deadline = now() + SERVE_SECONDS
        if self._unbalanced:
            self._rebalance_until(deadline)
        while ready:
            reader = ready.popleft()
            if not reader.is_closed:
                reader.serve()
            if now() >= deadline:
                break
        if ready or self._unbalanced:
            self._wake()

    def on_credit(self, consumer: Consumer) -> None:
        """The consumer may have credit again."""
        reader = self._by_consumer.get(consumer)
        if reader is not None:
            reader.wake()
            self._wake()

    def _rebalance_until(self, deadline: float) -> None:
        """Rebalance each group once, however many members joined or left; at least one group."""
        groups, now = self._unbalanced, self._context.monotonic
        for group in list(groups):
            del groups[group]
            group.rebalance()
            if now() >= deadline:
                return

    def settle(self, entries: Sequence[Entry], outcome: Outcome) -> int:
        """Settle entries; returns how many of them belonged to a reader of this log."""
        if {*map(type, entries)} == {LogEntry}:
            records = cast("list[LogEntry]", entries)
            readers = {entry.cursor.reader for entry in records}
            if len(readers) == 1 and (only := readers.pop()) is not None:
                self._settle(only, records, outcome)
                return len(records)
        by_reader: dict[ConsumerReader, list[LogEntry]] = {}
        last: ConsumerReader | None = None
        same_reader: list[LogEntry] = []
        for entry in entries:
            if not isinstance(entry, LogEntry):
                assert isinstance(entry, RebalanceEntry)
                self._on_notification_settled(entry)
                continue
            reader = entry.cursor.reader
            if reader is None:
                continue
            if reader is not last:
                last, same_reader = reader, by_reader.setdefault(reader, [])
            same_reader.append(entry)
        for reader, settled in by_reader.items():
            self._settle(reader, settled, outcome)
        return sum(map(len, by_reader.values()))

    def _on_notification_settled(self, entry: RebalanceEntry) -> None:
        """The member releases partitions when it settles the notification that they are revoked."""
        reader = entry.reader
        reader.wake()  # it has credit again
        if not entry.releasing or reader.is_closed:
            return
        assert reader.group is not None and reader.notifier is not None
        reader.notifier.on_released(entry.releasing)
        reader.group.release(entry.releasing)
        self._unbalanced[reader.group] = None
        self._wake()

    def _settle(self, reader: ConsumerReader, entries: list[LogEntry], outcome: Outcome) -> None:
        reader.unacked -= len(entries)
        reader.wake()
        if reader.group is not None:
            if outcome is Outcome.REQUEUE:
                reader.group.requeue(entries)
            else:
                reader.group.ack(entries)
        elif outcome is Outcome.REQUEUE and not reader.is_closed:
            for entry in entries:
                entry.cursor.requeue(entry.record)

    def _wake(self) -> None:
        self._context.mark_ready(self._queue)

    # Groups --------------------------------------------------------------------------------------

    def group(self, name: str) -> ConsumerGroup:
        """The group of that name; created when first used."""
        group = self.groups.get(name)
        if group is None:
            name = self._group_name(name)
            self._require_room()
            group = self._create_group(name, {})
        return group

    def recover_group(self, name: str, committed: Mapping[int, int]) -> None:
        self._create_group(name, committed)

    def _create_group(self, name: str, committed: Mapping[int, int]) -> ConsumerGroup:
        group = ConsumerGroup(name, self._logs, self._context.save_offset, self._wake, committed)
        self.groups[name] = group
        return group

    def delete_group(self, name: str) -> None:
        self._remove_group(name)
        for log in self._logs:
            self._context.delete_offset(log.id, name)

    def _remove_group(self, name: str) -> None:
        group = self.groups.pop(name, None)
        if group is not None:
            self._unbalanced.pop(group, None)
            group.break_cycles()

    # Consumer arguments --------------------------------------------------------------------------

    def _check(self, consumer: Consumer) -> None:
        if consumer.no_ack:
            raise NotImplementedHere(
                f"automatic acknowledgement not supported by stream queues {self._full_name}"
            )
        if not consumer.prefetch:
            raise PreconditionFailed(f"consumer prefetch count is not set for '{self._full_name}'")
        if consumer.shares_credit:
            raise NotImplementedHere(f"{self._full_name} does not support global qos")

    def _start_offset(self, arguments: Mapping[str, Any]) -> OffsetSpec:
        try:
            return parse_offset_spec(arguments.get(OFFSET_ARGUMENT))
        except SpecError as error:
            raise self._invalid(OFFSET_ARGUMENT, str(error)) from error

    def _group_name(self, name: object) -> str:
        if not isinstance(name, str) or not 1 <= len(name) <= 255:
            raise self._invalid(GROUP_ARGUMENT, "must be a name of 1 to 255 characters")
        return name

    def _maybe_filter(self, arguments: Mapping[str, Any]) -> RecordFilter | None:
        try:
            return maybe_filter(arguments)
        except SpecError as error:
            raise self._invalid(FILTER_ARGUMENT, str(error)) from error

    def _commit_plan(self, arguments: Mapping[str, Any]) -> CommitPlan:
        try:
            mode = CommitMode(arguments.get(COMMIT_ARGUMENT, "ack"))
        except ValueError:
            reason = f"must be ack, delivery or interval, not {arguments[COMMIT_ARGUMENT]!r}"
            raise self._invalid(COMMIT_ARGUMENT, reason) from None
        interval = arguments.get(INTERVAL_ARGUMENT)
        if mode is not CommitMode.AT_INTERVALS:
            if interval is not None:
                raise self._invalid(INTERVAL_ARGUMENT, "requires x-commit: interval")
            return CommitPlan(mode)
        if interval is None:
            return CommitPlan(mode, DEFAULT_COMMIT_INTERVAL_MS)
        if isinstance(interval, bool) or not isinstance(interval, int):
            raise self._invalid(INTERVAL_ARGUMENT, f"must be milliseconds, not {interval!r}")
        if not 1 <= interval <= MAX_COMMIT_INTERVAL_MS:
            reason = f"must be between 1 and {MAX_COMMIT_INTERVAL_MS} ms, not {interval}"
            raise self._invalid(INTERVAL_ARGUMENT, reason)
        return CommitPlan(mode, interval)

    def _maybe_notifier(self, arguments: Mapping[str, Any], group: str) -> RebalanceNotifier | None:
        is_wanted = arguments.get(NOTIFY_ARGUMENT, False)
        if not isinstance(is_wanted, bool):
            raise self._invalid(NOTIFY_ARGUMENT, f"must be true or false, not {is_wanted!r}")
        timeout = arguments.get(REBALANCE_TIMEOUT_ARGUMENT)
        if not is_wanted:
            if timeout is not None:
                raise self._invalid(REBALANCE_TIMEOUT_ARGUMENT, f"requires {NOTIFY_ARGUMENT}: true")
            return None
        if timeout is None:
            timeout = DEFAULT_REBALANCE_TIMEOUT_MS
        if isinstance(timeout, bool) or not isinstance(timeout, int):
            raise self._invalid(
                REBALANCE_TIMEOUT_ARGUMENT, f"must be milliseconds, not {timeout!r}"
            )
        if not 0 <= timeout <= MAX_REBALANCE_TIMEOUT_MS:
            reason = f"must be between 0 and {MAX_REBALANCE_TIMEOUT_MS} ms, not {timeout}"
            raise self._invalid(REBALANCE_TIMEOUT_ARGUMENT, reason)
        return RebalanceNotifier(self._queue.name, group, timeout)

    def _invalid(self, name: str, reason: str) -> PreconditionFailed:
        return PreconditionFailed(f"invalid arg '{name}' for {self._full_name}: {reason}")
