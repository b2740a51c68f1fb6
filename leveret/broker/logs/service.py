"""Logs as management sees them: create, describe, append, read, and manage consumer groups.

Plain methods for the HTTP API. They return frozen values; the keys and bodies of records are bytes.
Offsets are counted as in Kafka: `next_offset` is the offset of the next record to be written, a
group's committed offset is the next record it will process, and lag is the distance between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leveret.broker.access.users import User
from leveret.broker.logs.http_members import HttpGroupMember, HttpGroupMembers, JoinRequest
from leveret.broker.logs.info import (
    GroupInfo,
    LogInfo,
    group_info,
    group_lag,
    log_info,
    top_level_logs,
)
from leveret.broker.publishing.validation import validate_without_channel
from leveret.broker.runtime.commit_waiters import CommitOutcome
from leveret.model.errors import BrokerError, NotFound, PreconditionFailed, ReplyCode
from leveret.model.message import Address, Message, decode_properties, encode_properties
from leveret.queues.log.consumer_group import ConsumerGroup
from leveret.queues.log.deliveries import PARTITION_HEADER
from leveret.queues.log.files import Record, SpecError
from leveret.queues.log.log_queue import AnyLog, LogQueue, maybe_log, maybe_partition
from leveret.queues.log.spec import parse_offset_spec, resolve_offset
from leveret.queues.port import EnqueueResult
from leveret.queues.spec import QueueSpec

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

MAX_READ_BYTES = 4 * 1024 * 1024
MAX_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NewRecord:
    """`key` becomes the routing key. In a compacted log a key with an empty body is a tombstone."""

    body: bytes
    key: str = ""
    partition: int | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogRecord:
    partition: int
    offset: int
    time_ms: int
    exchange: str
    key: str
    properties: dict[str, Any]
    body: bytes


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """A reset of one partition; `before` is None if the group never read it."""

    partition: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class StreamTracking:
    """Committed offsets by group, and last sequence numbers by producer, of one partition."""

    offsets: Mapping[str, int | None]
    producers: Mapping[str, int]


LogInfos = list[LogInfo]
Records = list[LogRecord]

_NOBODY = User("", "")
"""The sender of records that no user sends."""


class LogService:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._members = HttpGroupMembers(broker)

    # Logs ----------------------------------------------------------------------------------------

    def list(self, vhost: str) -> LogInfos:
        """All logs; a partitioned one counts as one log."""
        logs = top_level_logs(self._vhost(vhost).queues.values())
        return [log_info(vhost, log) for log in logs]

    def describe(self, vhost: str, name: str) -> LogInfo:
        return log_info(vhost, self._log(vhost, name))

    async def create(
        self,
        vhost: str,
        name: str,
        partitions: int = 1,
        max_age: str | None = None,
        max_length_bytes: int | None = None,
        cleanup_policy: str | None = None,
        segment_bytes: int | None = None,
        delete_retention: str | None = None,
    ) -> bool:
        """Returns False if an equal log exists. With one partition the log is a plain stream."""
        optional: dict[str, Any] = {
            "x-queue-type": "stream",
            "x-partitions": partitions if partitions != 1 else None,
            "x-max-age": max_age,
            "x-max-length-bytes": max_length_bytes,
            "x-cleanup-policy": cleanup_policy,
            "x-stream-max-segment-size-bytes": segment_bytes,
            "x-delete-retention": delete_retention,
        }
        arguments = {key: value for key, value in optional.items() if value is not None}
        host = self._vhost(vhost)
        is_new = name not in host.queues
        spec = QueueSpec(name, True, arguments=arguments)
        await self._broker.log_manager.staging.declare(host, spec)
        self._broker.scheduler.schedule()
        return is_new

    def delete(self, vhost: str, name: str) -> None:
        self._log(vhost, name)
        self._vhost(vhost).delete_queue(name)
        self._broker.scheduler.schedule()

    # Records -------------------------------------------------------------------------------------

    async def publish(
        self, vhost: str, name: str, records: Iterable[NewRecord], sender: User = _NOBODY
    ) -> int:
        """Append records and wait until they are on disk; returns how many.

        A `user_id` property must name the sender, unless it has the tag `impersonator`.
        """
        log = self._log(vhost, name)
        exchange = name if log.is_partitioned else ""
        records = list(records)
        last = len(log.all_partitions()) - 1
        for record in records:
            if record.partition is not None and not 0 <= record.partition <= last:
                raise PreconditionFailed(
                    f"log '{name}' has the partitions 0 to {last}, not {record.partition}"
                )
            if log.log_spec.compacted and not exchange and record.key == name:
                raise PreconditionFailed(
                    f"a key '{name}' is the name of the log, which compaction does not take for a "
                    "key: use another key, or none"
                )
        messages = [_message(exchange, record) for record in records]
        for message in messages:
            validate_without_channel(message, self._broker.settings, sender)
        for message in messages:
            message.time_ms = self._broker.clock.wall_ms()
            if log.append(message) is EnqueueResult.REJECTED:
                raise PreconditionFailed("a record is rejected: its x-producer-seq leaves a gap")
            self._broker.counters.published += 1
            self._vhost(vhost).counters.published += 1
        await self.durable()
        return len(messages)

    async def read(
        self,
        vhost: str,
        name: str,
        partition: int = 0,
        offset: int | str = "first",
        count: int = 100,
        wait: float = 0.0,
    ) -> Records:
        """Records from an offset on (also `first`, `last`, `next` or an age such as `1h`).

        At the end of the log, waits up to `wait` seconds for a record.
        """
        log = self._partition(vhost, name, partition)
        start = self._offset(log, offset)
        if start >= log.next_offset and wait > 0:
            await self._wait_for_records([log], wait)
        return await self._read(partition, log, start, count)

    # Groups --------------------------------------------------------------------------------------

    def groups(self, vhost: str, name: str) -> Sequence[GroupInfo]:
        return [group_info(group) for group in self.consumer_groups(vhost, name)]

    def consumer_groups(self, vhost: str, name: str) -> Sequence[ConsumerGroup]:
        """The groups themselves: there may be too many to describe them all at once."""
        return [*self._log(vhost, name).readers.groups.values()]

    async def fetch(
        self, vhost: str, name: str, group: str, count: int = 100, wait: float = 0.0
    ) -> Records:
        """Records that the group has not committed; a new group starts at the first record.

        For a single reader: refused while the group has members.
        """
        idle_group = self._idle_group(vhost, name, group)
        logs = self._log(vhost, name).all_partitions()
        if wait > 0 and not any(group_lag(idle_group, n, log) for n, log in enumerate(logs)):
            await self._wait_for_records(logs, wait)
        records: Records = []
        for number, log in enumerate(logs):
            committed = idle_group.committed(number)
            start = log.first_offset if committed is None else committed
            if start < log.next_offset and len(records) < count:
                records += await self._read(number, log, start, count - len(records))
        return records

    async def commit(self, vhost: str, name: str, group: str, offsets: Mapping[int, int]) -> None:
        """Commit these offsets, by partition, and wait until they are on disk."""
        idle_group = self._idle_group(vhost, name, group)
        for partition, offset in offsets.items():
            log = self._partition(vhost, name, partition)
            if not 0 <= offset <= log.next_offset:
                raise PreconditionFailed(
                    f"offset {offset} is not in partition {partition}, which ends at "
                    f"{log.next_offset}"
                )
        idle_group.commit(offsets)
        await self.durable()

    def join(self, vhost: str, name: str, user: str, request: JoinRequest) -> HttpGroupMember:
        """Add a member to a group; it shares the partitions with the other members."""
        member = self._members.join(vhost, self._log(vhost, name), user, request)
        self._broker.scheduler.schedule()
        return member

    def member(self, vhost: str, name: str, group: str, tag: str) -> HttpGroupMember:
        return self._members.find(self._log(vhost, name), group, tag)

    async def fetch_as(self, member: HttpGroupMember, count: int = 100, wait: float = 0) -> Records:
        """Records that the member has not fetched yet."""
        entries = await member.fetch(count, min(wait, MAX_WAIT_SECONDS))
        return [
            _log_record(entry.cursor.assignment.partition, entry.record)
            for entry in entries
            if entry.cursor.assignment is not None
        ]

    async def commit_as(
        self, member: HttpGroupMember, offsets: Mapping[int, int]
    ) -> dict[int, int | None]:
        """Commit what the member fetched; returns the group's offsets once they are on disk."""
        member.commit(offsets)
        await self.durable()
        group = member.log.readers.group(member.group)
        return {number: group.committed(number) for number in member.partitions}

    def leave(self, member: HttpGroupMember) -> None:
        self._members.leave(member)
        self._broker.scheduler.schedule()

    def reset(
        self,
        vhost: str,
        name: str,
        group: str,
        to: int | str,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> Sequence[OffsetMove]:
        """Move a group's committed offsets; its members continue at the new offsets."""
        existing = self._group(self._log(vhost, name), group)
        numbers = range(len(existing.logs)) if partition is None else [partition]
        moves = []
        for number in numbers:
            log = self._partition(vhost, name, number)
            moves.append(OffsetMove(number, existing.committed(number), self._offset(log, to)))
        if not dry_run:
            for move in moves:
                existing.reset(move.partition, move.after)
            self._broker.scheduler.schedule()
        return moves

    def delete_group(self, vhost: str, name: str, group: str) -> None:
        log = self._log(vhost, name)
        if self._group(log, group).members:
            raise PreconditionFailed(f"group '{group}' has members: only an empty group is deleted")
        log.readers.delete_group(group)
        self._broker.scheduler.schedule()

    def tracking(self, vhost: str, queue: str) -> StreamTracking:
        """Groups and producers of one partition, or of a log that is not partitioned."""
        log = maybe_partition(self._log(vhost, queue))
        if log is None:
            raise NotFound(f"no stream '{queue}' in vhost '{vhost}': it has partitions")
        number, readers = log.partition_number or 0, (log.partition_of or log).readers
        return StreamTracking(
            {name: group.committed(number) for name, group in readers.groups.items()},
            {name.decode("utf-8", "replace"): n for name, n in log.producers.items()},
        )

    # Waiting -------------------------------------------------------------------------------------

    async def durable(self) -> None:
        """Wait until everything done so far is on disk."""
        if await self._broker.commit_waiters.committed() is CommitOutcome.FAILED:
            raise BrokerError("not stored: the disk is full or the store has failed")

    async def _wait_for_records(self, logs: Sequence[LogQueue], wait: float) -> None:
        committed = asyncio.Event()
        for log in logs:
            log.when_readable(committed.set)
        try:
            await asyncio.wait_for(committed.wait(), min(wait, MAX_WAIT_SECONDS))
        except TimeoutError:
            pass
        finally:
            for log in logs:
                log.remove_waiter(committed.set)

    async def _read(self, partition: int, log: LogQueue, offset: int, count: int) -> Records:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[Record] | None] = loop.create_future()
        log.read_soon(offset, max(1, count), MAX_READ_BYTES, future.set_result)
        records = await future
        if records is None:
            raise BrokerError(f"cannot read {log.full_name} right now", ReplyCode.RESOURCE_ERROR)
        return [_log_record(partition, record) for record in records]

    # Lookup --------------------------------------------------------------------------------------

    def _vhost(self, name: str) -> VirtualHost:
        vhost = self._broker.vhosts.get(name)
        if vhost is None:
            raise NotFound(f"no vhost '{name}'")
        return vhost

    def _log(self, vhost: str, name: str) -> AnyLog:
        log = maybe_log(self._vhost(vhost).queues.get(name))
        if log is None:
            raise NotFound(f"no log '{name}' in vhost '{vhost}'")
        return log

    def _partition(self, vhost: str, name: str, number: int) -> LogQueue:
        logs = self._log(vhost, name).all_partitions()
        if not 0 <= number < len(logs):
            raise NotFound(f"no partition {number} in log '{name}', which has {len(logs)}")
        return logs[number]

    def _group(self, log: AnyLog, name: str) -> ConsumerGroup:
        group = log.readers.groups.get(name)
        if group is None:
            raise NotFound(f"no group '{name}' on log '{log.name}'")
        return group

    def _idle_group(self, vhost: str, name: str, group: str) -> ConsumerGroup:
        """A group without members, created if it does not exist."""
        log = self._log(vhost, name)
        if log.partition_of is not None:
            raise PreconditionFailed(
                f"'{name}' is a partition of '{log.partition_of.name}': use that log"
            )
        idle_group = log.readers.group(group)
        if idle_group.members:
            count = len(idle_group.members)
            raise PreconditionFailed(f"group '{group}' has {count} members")
        return idle_group

    def _offset(self, log: LogQueue, offset: int | str) -> int:
        try:
            return resolve_offset(parse_offset_spec(offset), log, self._broker.clock.wall_ms())
        except SpecError as error:
            raise PreconditionFailed(str(error)) from error


def _message(exchange: str, record: NewRecord) -> Message:
    values = dict(record.properties)
    if record.partition is not None:
        values["headers"] = {**(values.get("headers") or {}), PARTITION_HEADER: record.partition}
    try:
        properties = encode_properties(values)
    except (ValueError, TypeError) as error:
        raise PreconditionFailed(f"a record cannot be encoded: {error}") from error
    if (size := len(record.key.encode())) > 255:
        raise PreconditionFailed(f"a key has {size} bytes: at most 255 are allowed")
    return Message.build(Address.of(exchange, record.key), properties, record.body)


def _log_record(partition: int, record: Record) -> LogRecord:
    return LogRecord(
        partition,
        record.offset,
        record.time_ms,
        record.exchange.decode("utf-8", "replace"),
        record.routing_key.decode("utf-8", "replace"),
        decode_properties(record.properties),
        record.body,
    )
