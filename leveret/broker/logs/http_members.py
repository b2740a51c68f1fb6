"""Group members that read over HTTP.

Such a member is a consumer like one over AMQP: it takes part in the assignment of partitions.
Delivered records wait here until the member fetches them; the member acknowledges fetched records
by committing an offset. A member that sends no request for longer than its session is removed.

Event-loop thread only. A crash loses members, not the group's offsets: they join again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leveret.model.clients import ConsumerInfo
from leveret.model.errors import NotFound, PreconditionFailed
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Outcome
from leveret.queues.log.deliveries import LogEntry
from leveret.queues.log.log_queue import AnyLog
from leveret.queues.log.readers import GROUP_ARGUMENT, OFFSET_ARGUMENT, ConsumerReader

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

MAX_WAITING_BYTES = 4 * 1024 * 1024
DISK_READ_SECONDS = 5.0
"""A fetch waits at least this long for records that are in the log but not in memory yet."""
DEFAULT_SESSION = 30.0
DEFAULT_PREFETCH = 500


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """`start` applies to partitions that the group has never read."""

    group: str
    start: Any = "first"
    prefetch: int = DEFAULT_PREFETCH
    session: float = DEFAULT_SESSION


class HttpGroupMember:
    """Implements `leveret.queues.port.Consumer`."""

    no_ack = exclusive = shares_credit = takes_turns = False
    is_writable = True
    priority = actor = 0

    def __init__(
        self, broker: Broker, vhost: str, log: AnyLog, user: str, request: JoinRequest
    ) -> None:
        self.tag = f"http-{secrets.token_hex(8)}"
        self.vhost = vhost
        self.log = log
        self.group = request.group
        self.prefetch = request.prefetch
        self.arguments = {GROUP_ARGUMENT: request.group, OFFSET_ARGUMENT: request.start}
        self.session = request.session
        self.is_gone = False
        self.delivered = 0
        self._user = user
        self._broker = broker
        self._waiting: deque[LogEntry] = deque()
        self._waiting_bytes = 0
        self._fetched: dict[int, deque[LogEntry]] = {}
        self._arrived = asyncio.Event()
        self._running_fetches = 0
        self._last_request = asyncio.get_running_loop().time()

    def __repr__(self) -> str:
        return f"<HttpGroupMember {self.tag} of {self.group!r}, {self.unsettled} unsettled>"

    # As a consumer -----------------------------------------------------------------------------

    def credit(self) -> int:
        if self._waiting_bytes >= MAX_WAITING_BYTES:
            return 0
        return self.prefetch - self.unsettled

    def deliver(self, delivery: Delivery) -> None:
        for entry in delivery.entries():
            assert isinstance(entry, LogEntry)
            self._waiting.append(entry)
            self._waiting_bytes += len(entry.message.body)
        self.delivered += len(delivery)
        self._arrived.set()

    def cancelled(self) -> None:
        self.is_gone = True
        self._arrived.set()

    def info(self) -> ConsumerInfo:
        name = f"HTTP API ({self.tag})"
        return ConsumerInfo(
            consumer_tag=self.tag,
            ack_required=True,
            exclusive=False,
            prefetch_count=self.prefetch,
            active=True,
            activity_status="up",
            arguments=dict(self.arguments),
            unacknowledged=self.unsettled,
            delivered=self.delivered,
            queue=self.log.name,
            vhost=self.vhost,
            channel_name=name,
            channel_number=0,
            connection_name=name,
            peer_host="",
            peer_port=0,
            user=self._user,
            node=self._broker.settings.node_name,
        )

    # As a client -------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        return len(self._waiting) + sum(map(len, self._fetched.values()))

    @property
    def partitions(self) -> list[int]:
        """The partitions assigned to it now."""
        reader = self._reader
        return reader.partitions if reader is not None else []

    @property
    def _reader(self) -> ConsumerReader | None:
        return self.log.readers.maybe_reader(self)

    @property
    def _is_behind(self) -> bool:
        """Whether there are records for it that only need to be read from disk."""
        reader = self._reader
        if reader is None or self.credit() <= 0:
            return False
        return any(cursor.is_behind for cursor in reader.cursors)

    def has_timed_out(self, now: float) -> bool:
        return not self._running_fetches and now - self._last_request > self.session

    async def fetch(self, count: int, wait: float) -> list[LogEntry]:
        """The next records; waits up to `wait` seconds for the first one.

        Records that are in the log already are waited for in any case: they must be read from disk.
        """
        self._running_fetches += 1
        try:
            entries = self._take(count)
            if not entries and self._is_behind:
                wait = max(wait, DISK_READ_SECONDS)
            if not entries and wait > 0:
                entries = await self._wait_for_next(count, wait)
            return entries
        finally:
            self._running_fetches -= 1
            self._last_request = asyncio.get_running_loop().time()

    async def _wait_for_next(self, count: int, wait: float) -> list[LogEntry]:
        deadline = asyncio.get_running_loop().time() + wait
        while not self.is_gone:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                break
            if entries := self._take(count):
                return entries
        return []

    def _take(self, count: int) -> list[LogEntry]:
        self._drop_revoked()
        entries = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        for entry in entries:
            assert entry.cursor.assignment is not None
            self._fetched.setdefault(entry.cursor.assignment.partition, deque()).append(entry)
            self._waiting_bytes -= len(entry.message.body)
        if entries:
            self.log.on_credit(self)
        return entries

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Acknowledge the fetched records below these offsets, by partition."""
        self._last_request = asyncio.get_running_loop().time()
        self._drop_revoked()
        acked: list[LogEntry] = []
        for partition, offset in offsets.items():
            fetched = self._fetched.get(partition, deque())
            if fetched and offset > fetched[-1].id + 1:
                raise PreconditionFailed(
                    f"offset {offset} of partition {partition} is beyond what was fetched: at most "
                    f"{fetched[-1].id + 1} can be committed"
                )
        for partition, offset in offsets.items():
            fetched = self._fetched.get(partition, deque())
            while fetched and fetched[0].id < offset:
                acked.append(fetched.popleft())
        self._settle(acked, Outcome.ACK)

    def _drop_revoked(self) -> None:
        """Requeue entries of partitions that are no longer assigned to this member."""
        revoked = [entry for entry in self._waiting if entry.cursor.is_closed]
        if revoked:
            self._waiting = deque(e for e in self._waiting if not e.cursor.is_closed)
            self._waiting_bytes = sum(len(e.message.body) for e in self._waiting)
        for partition, fetched in list(self._fetched.items()):
            revoked += [entry for entry in fetched if entry.cursor.is_closed]
            self._fetched[partition] = deque(e for e in fetched if not e.cursor.is_closed)
        self._settle(revoked, Outcome.REQUEUE)

    def _settle(self, entries: list[LogEntry], outcome: Outcome) -> None:
        if entries:
            self.log.settle([Delivery(self.log, self, entries)], outcome, self.actor)
            self._broker.scheduler.mark_ready(self.log)


class HttpGroupMembers:
    """All members over HTTP, by consumer tag."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._members: dict[str, HttpGroupMember] = {}

    def __len__(self) -> int:
        return len(self._members)

    def join(self, vhost: str, log: AnyLog, user: str, request: JoinRequest) -> HttpGroupMember:
        member = HttpGroupMember(self._broker, vhost, log, user, request)
        log.add_consumer(member)
        self._members[member.tag] = member
        self._check_later(member)
        return member

    def find(self, log: AnyLog, group: str, tag: str) -> HttpGroupMember:
        member = self._members.get(tag)
        if member is None or member.is_gone or member.log is not log or member.group != group:
            raise NotFound(
                f"no member '{tag}' in group '{group}': it left, or its session timed out"
            )
        return member

    def leave(self, member: HttpGroupMember) -> None:
        self._members.pop(member.tag, None)
        if not member.is_gone:
            member.log.remove_consumer(member)
            member.cancelled()

    def _check_later(self, member: HttpGroupMember) -> None:
        """Check the session four times in its length, until the member is gone."""
        loop = asyncio.get_running_loop()

        def check() -> None:
            if member.is_gone or member.log.is_closed:
                self._members.pop(member.tag, None)
            elif member.has_timed_out(loop.time()):
                self.leave(member)
            else:
                self._check_later(member)

        loop.call_later(member.session / 4, check)
