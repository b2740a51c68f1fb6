"""Everybody who reads one log: consumers for themselves, and groups.

Shared by `LogQueue` (one partition) and `PartitionedLog` (several). What RabbitMQ asks of a
consumer of a stream is asked here, in its words: a prefetch of its own, and manual acks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from leveret.model.errors import NotImplementedHere, PreconditionFailed
from queues.entry import Entry, Outcome
from queues.log import CommitMode, OffsetSpec, SpecError, parse_offset_spec, resolve_offset
from queues.port import Consumer, HeldQueue, TappedQueue
from queues.stream.cursor import Crowd, Cursor, Readable
from queues.stream.filter import FILTER_ARGUMENT, RecordFilter, maybe_filter
from queues.stream.groups import (
    DEFAULT_COMMIT_INTERVAL_MS,
    CommitPlan,
    GroupLog,
    LogGroup,
    SaveOffset,
)
from queues.stream.reading import Defer, Placed, Reading
from queues.stream.records import LogEntry

GROUP_ARGUMENT = "x-group"
COMMIT_ARGUMENT = "x-commit"
INTERVAL_ARGUMENT = "x-commit-interval"
OFFSET_ARGUMENT = "x-stream-offset"
LONGEST_COMMIT_INTERVAL_MS = 3_600_000
MOST_PLACES = 50_000
"""Of one log: a place in each partition for every consumer by itself, and for every group."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a log needs from the hub."""

    touch: Callable[[HeldQueue], None]
    save_offset: SaveOffset
    forget_offset: Callable[[int, str], None]
    defer: Defer
    now_ms: Callable[[], int]
    crowd: Crowd


class Readers:
    def __init__(
        self, queue: TappedQueue, where: str, logs: Sequence[GroupLog], around: Surroundings
    ) -> None:
        self._queue = queue
        self._where = where
        self._logs = logs
        self._around = around
        self._readings: dict[Consumer, Reading] = {}
        self._placed: Placed = {}
        self._changed: dict[LogGroup, None] = {}
        """Groups whose partitions are to be shared out anew at the end of the turn."""
        self._alone = 0
        self.groups: dict[str, LogGroup] = {}

    def __len__(self) -> int:
        return len(self._readings)

    @property
    def consumers(self) -> Collection[Consumer]:
        return self._readings.keys()

    def maybe_reading(self, consumer: Consumer) -> Reading | None:
        """Where it reads now."""
        self.share_out()
        return self._readings.get(consumer)

    @property
    def unacked(self) -> int:
        return sum(reading.unacked for reading in self._readings.values())

    def lags(self) -> Iterator[tuple[Readable, int]]:
        """For each place read by somebody: the partition, and how many records lie before it."""
        for reading in self._readings.values():
            for cursor in reading.cursors:
                yield cursor.log, max(0, cursor.log.next_offset - cursor.place)

    # Coming and going --------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        self._check(consumer)
        start = self._start(consumer.arguments)
        name = consumer.arguments.get(GROUP_ARGUMENT)
        wanted = self._filter(consumer.arguments)
        if name is None:
            self._add_single(consumer, start, wanted)
        elif wanted is not None:
            raise self._invalid(FILTER_ARGUMENT, "a group reads whole partitions")
        else:
            self._add_member(consumer, start, self._group_name(name))
        self._wake()

    def _add_single(
        self, consumer: Consumer, start: OffsetSpec, wanted: RecordFilter | None
    ) -> None:
        self._require_room()
        reading = Reading(self._queue, consumer, self._around.defer, self._placed)
        for log in self._logs:
            position = resolve_offset(start, log, self._around.now_ms())
            reading.read(Cursor(log, position, self._wake, filter=wanted))
        self._readings[consumer] = reading
        self._alone += 1

    def _require_room(self) -> None:
        most = MOST_PLACES // len(self._logs)
        if self._alone + len(self.groups) >= most:
            raise PreconditionFailed(
                f"{self._where} has {most} groups and consumers without a group: no more fit"
            )

    def _add_member(self, consumer: Consumer, start: OffsetSpec, name: str) -> None:
        plan = self._plan(consumer.arguments)
        group = self.group(name)
        member = Reading(self._queue, consumer, self._around.defer, self._placed, group)
        group.join(member, start, plan)
        self._changed[group] = None
        self._readings[consumer] = member

    def remove(self, consumer: Consumer) -> None:
        reading = self._readings.pop(consumer, None)
        if reading is not None:
            if reading.group is not None:
                reading.group.leave(reading)
                self._changed[reading.group] = None
            else:
                self._alone -= 1
            reading.close()

    def cancel_all(self) -> None:
        """The log has gone."""
        for consumer in list(self._readings):
            self.remove(consumer)
            consumer.cancelled()

    def close(self) -> None:
        """The broker stops: places stay as they are saved."""
        self._changed.clear()
        for reading in self._readings.values():
            reading.close()
        for group in self.groups.values():
            group.close()

    def let_go(self) -> None:
        """Of the log, which has gone: else each would keep the other."""
        self._queue, self._logs = cast(TappedQueue, None), ()

    # Working -----------------------------------------------------------------------------------

    def serve(self) -> None:
        if self._changed:
            self.share_out()
        for reading in list(self._placed):
            reading.serve()

    def share_out(self) -> None:
        """Members have come and gone: each group is shared out once for all of them."""
        changed, self._changed = self._changed, {}
        for group in changed:
            group.share_out()

    def settle(self, entries: Sequence[Entry], outcome: Outcome) -> int:
        """How many of them were still held by somebody here."""
        by_reader: dict[Reading, list[LogEntry]] = {}
        last: Reading | None = None
        mine: list[LogEntry] = []
        for entry in entries:
            assert isinstance(entry, LogEntry)
            reading = entry.cursor.reading
            if reading is None:
                continue
            if reading is not last:
                last, mine = reading, by_reader.setdefault(reading, [])
            mine.append(entry)
        for reading, settled in by_reader.items():
            self._settle(reading, settled, outcome)
        return sum(map(len, by_reader.values()))

    def _settle(self, reading: Reading, entries: list[LogEntry], outcome: Outcome) -> None:
        reading.unacked -= len(entries)
        if reading.group is not None:
            if outcome is Outcome.REQUEUE:
                reading.group.given_back(entries)
            else:
                reading.group.acked(entries)
        elif outcome is Outcome.REQUEUE and not reading.is_closed:
            for entry in entries:
                entry.cursor.give_back(entry.message.record)

    def group(self, name: str) -> LogGroup:
        """The group of that name; it is made when it is first named."""
        found = self.groups.get(name)
        if found is None:
            name = self._group_name(name)
            self._require_room()
            found = self._make_group(name, {})
        return found

    def recover_group(self, name: str, committed: Mapping[int, int]) -> None:
        self._make_group(name, committed)

    def _make_group(self, name: str, committed: Mapping[int, int]) -> LogGroup:
        group = LogGroup(name, self._logs, self._around.save_offset, self._wake, committed)
        self.groups[name] = group
        return group

    def forget_group(self, name: str) -> None:
        group = self.groups.pop(name, None)
        if group is not None:
            self._changed.pop(group, None)
            group.let_go()
        for log in self._logs:
            self._around.forget_offset(log.id, name)

    def _wake(self) -> None:
        self._around.touch(self._queue)

    # What a consumer asks for ------------------------------------------------------------------

    def _check(self, consumer: Consumer) -> None:
        if consumer.no_ack:
            raise NotImplementedHere(
                f"automatic acknowledgement not supported by stream queues {self._where}"
            )
        if not consumer.prefetch:
            raise PreconditionFailed(f"consumer prefetch count is not set for '{self._where}'")
        if consumer.shares_credit:
            raise NotImplementedHere(f"{self._where} does not support global qos")

    def _start(self, arguments: Mapping[str, Any]) -> OffsetSpec:
        try:
            return parse_offset_spec(arguments.get(OFFSET_ARGUMENT))
        except SpecError as error:
            raise self._invalid(OFFSET_ARGUMENT, str(error)) from error

    def _group_name(self, name: object) -> str:
        if not isinstance(name, str) or not 1 <= len(name) <= 255:
            raise self._invalid(GROUP_ARGUMENT, "must be a name of 1 to 255 characters")
        return name

    def _filter(self, arguments: Mapping[str, Any]) -> RecordFilter | None:
        try:
            return maybe_filter(arguments)
        except SpecError as error:
            raise self._invalid(FILTER_ARGUMENT, str(error)) from error

    def _plan(self, arguments: Mapping[str, Any]) -> CommitPlan:
        try:
            mode = CommitMode(arguments.get(COMMIT_ARGUMENT, "ack"))
        except ValueError:
            why = "must be ack, delivery or interval"
            raise self._invalid(COMMIT_ARGUMENT, why) from None
        interval = arguments.get(INTERVAL_ARGUMENT)
        if mode is not CommitMode.AT_INTERVALS:
            if interval is not None:
                raise self._invalid(INTERVAL_ARGUMENT, "goes with x-commit: interval")
            return CommitPlan(mode)
        if interval is None:
            return CommitPlan(mode, DEFAULT_COMMIT_INTERVAL_MS)
        if isinstance(interval, bool) or not isinstance(interval, int):
            raise self._invalid(INTERVAL_ARGUMENT, f"must be milliseconds, not {interval!r}")
        if not 1 <= interval <= LONGEST_COMMIT_INTERVAL_MS:
            why = f"must be between 1 and {LONGEST_COMMIT_INTERVAL_MS} ms"
            raise self._invalid(INTERVAL_ARGUMENT, why)
        return CommitPlan(mode, interval)

    def _invalid(self, name: str, why: str) -> PreconditionFailed:
        return PreconditionFailed(f"invalid arg '{name}' for {self._where}: {why}")
