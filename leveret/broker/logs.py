"""Logs as management sees them: create, describe, write, read, and look after consumer groups.

Plain methods for the HTTP API; what they return is ready for JSON, records apart, whose keys and
bodies are bytes. Offsets are as Kafka counts them: `next_offset` is what the next record will get,
a group's committed offset is the next record it will process, lag is the distance between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leveret.broker.judging import check_without_channel
from leveret.broker.log_keeper import LogKeeper
from leveret.broker.log_members import Joining, LogMember, LogMembers, Place
from leveret.broker.log_views import (
    Held,
    Json,
    described_group,
    described_log,
    lag_of,
    partitions_of,
)
from leveret.model.errors import BrokerError, NotFound, PreconditionFailed, ReplyCode
from leveret.model.message import Address, Message
from leveret.model.properties import decode_properties, encode_properties
from queues import Enqueued, LogQueue, PartitionedLog, QueueSpec
from queues.log import Record, SpecError, parse_offset_spec, resolve_offset
from queues.stream import LogGroup
from queues.stream.records import PARTITION_HEADER

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

READ_BYTES = 4 * 1024 * 1024
LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class NewRecord:
    """`key` becomes the routing key; an empty body under a key is a tombstone when compacted."""

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
    properties: Json
    body: bytes


Rows = list[Json]
Records = list[LogRecord]
Moves = list[tuple[int, int | None, int]]
"""(partition, from, to); from is None where the group has never been."""


class Logs:
    def __init__(self, broker: Broker, keeper: LogKeeper) -> None:
        self._broker = broker
        self._keeper = keeper
        self._members = LogMembers(broker)

    # The logs there are ------------------------------------------------------------------------

    def list(self, vhost: str) -> Rows:
        """Every log, partitioned ones once."""
        return [
            described_log(vhost, queue)
            for queue in self._vhost(vhost).queues.values()
            if isinstance(queue, PartitionedLog)
            or (isinstance(queue, LogQueue) and queue.whole is None)
        ]

    def describe(self, vhost: str, name: str) -> Json:
        return described_log(vhost, self._log(vhost, name))

    def create(
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
        """False if it was there already, just so. One partition is a plain stream."""
        given: Json = {
            "x-queue-type": "stream",
            "x-partitions": partitions if partitions != 1 else None,
            "x-max-age": max_age,
            "x-max-length-bytes": max_length_bytes,
            "x-cleanup-policy": cleanup_policy,
            "x-stream-max-segment-size-bytes": segment_bytes,
            "x-delete-retention": delete_retention,
        }
        arguments = {key: value for key, value in given.items() if value is not None}
        host = self._vhost(vhost)
        is_new = name not in host.queues
        host.declare_queue(QueueSpec(name, True, arguments=arguments))
        self._broker.turn.schedule()
        return is_new

    def delete(self, vhost: str, name: str) -> None:
        self._log(vhost, name)
        self._vhost(vhost).delete_queue(name)
        self._broker.turn.schedule()

    # Records -----------------------------------------------------------------------------------

    async def publish(
        self, vhost: str, name: str, records: Iterable[NewRecord], sender: str = ""
    ) -> int:
        """Append, and return how many when they are on disk; a `user_id` must be the sender's."""
        held = self._log(vhost, name)
        exchange = name if isinstance(held, PartitionedLog) else ""
        records = list(records)
        last = len(partitions_of(held)) - 1
        for record in records:
            if record.partition is not None and not 0 <= record.partition <= last:
                raise PreconditionFailed(
                    f"log '{name}' has the partitions 0 to {last}, not {record.partition}"
                )
        messages = [_message(exchange, record) for record in records]
        for message in messages:
            check_without_channel(message, self._broker.settings, sender)
        for message in messages:
            message.time_ms = self._broker.clock.wall_ms()
            if held.enqueue(message) is Enqueued.REJECTED:
                raise PreconditionFailed("a record is refused: its x-producer-seq leaves some out")
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
        """Records from an offset on (or `first`, `last`, `next`, `1h`), waiting for the first."""
        log = self._partition(vhost, name, partition)
        start = self._offset(log, offset)
        if start >= log.next_offset and wait > 0:
            await self._grown([log], wait)
        return await self._read(partition, log, start, count)

    # Groups ------------------------------------------------------------------------------------

    def groups(self, vhost: str, name: str) -> Rows:
        held = self._log(vhost, name)
        return [described_group(group) for group in held.readers.groups.values()]

    async def fetch(
        self, vhost: str, name: str, group: str, count: int = 100, wait: float = 0.0
    ) -> Records:
        """What the group has not committed; a group that is new begins at the first record.

        For one reader at a time: refused while the group has members.
        """
        member = self._idle_group(vhost, name, group)
        logs = partitions_of(self._log(vhost, name))
        if wait > 0 and not any(lag_of(member, n, log) for n, log in enumerate(logs)):
            await self._grown(logs, wait)
        found: Records = []
        for number, log in enumerate(logs):
            start = member.committed(number)
            place = log.first_offset if start is None else start
            if place < log.next_offset and len(found) < count:
                found += await self._read(number, log, place, count - len(found))
        return found

    async def commit(self, vhost: str, name: str, group: str, offsets: Mapping[int, int]) -> None:
        """Everything below these offsets, by partition, is done; returns when that is on disk."""
        member = self._idle_group(vhost, name, group)
        for partition, offset in offsets.items():
            log = self._partition(vhost, name, partition)
            if not 0 <= offset <= log.next_offset:
                raise PreconditionFailed(
                    f"offset {offset} is not in partition {partition}, which ends at "
                    f"{log.next_offset}"
                )
        member.commit(offsets)
        await self.durable()

    def join(self, vhost: str, name: str, user: str, asked: Joining) -> LogMember:
        """A new member of a group, beside whoever is there."""
        member = self._members.join(Place(vhost, self._log(vhost, name)), user, asked)
        self._broker.turn.schedule()
        return member

    def member(self, vhost: str, name: str, group: str, tag: str) -> LogMember:
        return self._members.find(self._log(vhost, name), group, tag)

    async def fetch_as(self, member: LogMember, count: int = 100, wait: float = 0.0) -> Records:
        """What the member has not fetched yet."""
        found = await member.fetch(count, min(wait, LONGEST_WAIT))
        return [
            _shown(entry.cursor.lease.partition, entry.message.record)
            for entry in found
            if entry.cursor.lease is not None
        ]

    async def commit_as(
        self, member: LogMember, offsets: Mapping[int, int]
    ) -> dict[int, int | None]:
        """Everything below these offsets is done; the group's offsets when they are on disk."""
        member.commit(offsets)
        await self.durable()
        group = member.log.readers.group(member.group)
        return {number: group.committed(number) for number in member.partitions}

    def leave(self, member: LogMember) -> None:
        self._members.leave(member)
        self._broker.turn.schedule()

    def reset(
        self,
        vhost: str,
        name: str,
        group: str,
        to: int | str,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> Moves:
        """Move a group: (partition, from, to) for each; members go on at the new place."""
        held = self._log(vhost, name)
        found = self._group(held, group)
        numbers = range(len(found.logs)) if partition is None else [partition]
        moves = []
        for number in numbers:
            log = self._partition(vhost, name, number)
            moves.append((number, found.committed(number), self._offset(log, to)))
        if not dry_run:
            for number, _, target in moves:
                found.reset(number, target)
            self._broker.turn.schedule()
        return moves

    def delete_group(self, vhost: str, name: str, group: str) -> None:
        held = self._log(vhost, name)
        if self._group(held, group).members:
            raise PreconditionFailed(f"group '{group}' has members")
        held.readers.forget_group(group)
        self._broker.turn.schedule()

    def tracking(self, vhost: str, queue: str) -> Json:
        """Offsets by group and numbers by producer, of one partition or a log of one."""
        held = self._log(vhost, queue)
        if isinstance(held, PartitionedLog):
            raise NotFound(f"no stream '{queue}' in vhost '{vhost}': it has partitions")
        number, readers = held.number or 0, (held.whole or held).readers
        offsets = {name: group.committed(number) for name, group in readers.groups.items()}
        writers = {name.decode("utf-8", "replace"): n for name, n in held.producers.items()}
        return {"offsets": offsets, "writers": writers}

    # Waiting -----------------------------------------------------------------------------------

    async def durable(self) -> None:
        """Until everything done so far is on disk."""
        future = asyncio.get_running_loop().create_future()
        broker = self._broker

        def decided(error: BrokerError | None) -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(None)

        broker.turn.schedule()
        lost = BrokerError("not stored: the disk is full or the store has failed")
        broker.commits.after(broker.store.mark, lambda: decided(None), lambda: decided(lost))
        await future

    async def _grown(self, logs: Sequence[LogQueue], wait: float) -> None:
        grown = asyncio.Event()
        for log in logs:
            log.when_head(grown.set)
        try:
            await asyncio.wait_for(grown.wait(), min(wait, LONGEST_WAIT))
        except TimeoutError:
            pass
        finally:
            for log in logs:
                log.forget_waiter(grown.set)

    async def _read(self, partition: int, log: LogQueue, offset: int, count: int) -> Records:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[Record] | None] = loop.create_future()
        log.read_soon(offset, max(1, count), READ_BYTES, future.set_result)
        records = await future
        if records is None:
            raise BrokerError("the log cannot be read right now", ReplyCode.RESOURCE_ERROR)
        return [_shown(partition, record) for record in records]

    # Finding -----------------------------------------------------------------------------------

    def _vhost(self, name: str) -> VirtualHost:
        found = self._broker.vhosts.get(name)
        if found is None:
            raise NotFound(f"no vhost '{name}'")
        return found

    def _log(self, vhost: str, name: str) -> Held:
        found = self._vhost(vhost).queues.get(name)
        if not isinstance(found, LogQueue | PartitionedLog):
            raise NotFound(f"no log '{name}' in vhost '{vhost}'")
        return found

    def _partition(self, vhost: str, name: str, number: int) -> LogQueue:
        logs = partitions_of(self._log(vhost, name))
        if not 0 <= number < len(logs):
            raise NotFound(f"no partition {number} in log '{name}', which has {len(logs)}")
        return logs[number]

    def _group(self, held: Held, name: str) -> LogGroup:
        found = held.readers.groups.get(name)
        if found is None:
            raise NotFound(f"no group '{name}' on log '{held.name}'")
        return found

    def _idle_group(self, vhost: str, name: str, group: str) -> LogGroup:
        held = self._log(vhost, name)
        if isinstance(held, LogQueue) and held.whole is not None:
            raise PreconditionFailed(f"'{name}' is a partition of '{held.whole.name}'")
        found = held.readers.group(group)
        if found.members:
            count = len(found.members)
            raise PreconditionFailed(f"group '{group}' has {count} members")
        return found

    def _offset(self, log: LogQueue, asked: int | str) -> int:
        try:
            return resolve_offset(parse_offset_spec(asked), log, self._broker.clock.wall_ms())
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
    if len(record.key.encode()) > 255:
        raise PreconditionFailed("a key is longer than 255 octets")
    return Message.build(Address.of(exchange, record.key), properties, record.body)


def _shown(partition: int, record: Record) -> LogRecord:
    return LogRecord(
        partition,
        record.offset,
        record.time_ms,
        record.exchange.decode("utf-8", "replace"),
        record.routing_key.decode("utf-8", "replace"),
        decode_properties(record.properties),
        record.body,
    )
