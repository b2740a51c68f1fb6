"""Members of consumer groups that read over HTTP.

Such a member is a consumer like one over AMQP: it has its share of the partitions, and changes of
the group give it partitions and take them away. What it is given waits here until it is fetched;
what was fetched is processed when the member commits it. A member that has asked for nothing
longer than its session is taken for dead.

Event-loop thread only. A crash forgets members, not the group's offsets: they join again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.log_views import Held
from leveret.model.errors import NotFound, PreconditionFailed
from queues import Entry, HeldQueue, Outcome
from queues.stream.reading import Reading
from queues.stream.records import LogEntry

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

MOST_WAITING_BYTES = 4 * 1024 * 1024
LONGEST_READ = 5.0
DEFAULT_SESSION = 30.0
DEFAULT_PREFETCH = 500


@dataclass(frozen=True, slots=True)
class Joining:
    """What a new member asks for. `start` counts where its group has never been."""

    group: str
    start: Any = "first"
    prefetch: int = DEFAULT_PREFETCH
    session: float = DEFAULT_SESSION


class Place(NamedTuple):
    vhost: str
    log: Held


class LogMember:
    """Implements `queues.port.Consumer`."""

    no_ack = exclusive = shares_credit = False
    priority = actor = 0

    def __init__(self, broker: Broker, where: Place, user: str, asked: Joining) -> None:
        self.tag = f"http-{secrets.token_hex(8)}"
        self.vhost, self.log = where
        self.group = asked.group
        self.prefetch = asked.prefetch
        self.arguments = {"x-group": asked.group, "x-stream-offset": asked.start}
        self.session = asked.session
        self.is_gone = False
        self.delivered = 0
        self._user = user
        self._broker = broker
        self._waiting: deque[LogEntry] = deque()
        self._waiting_bytes = 0
        self._fetched: dict[int, deque[LogEntry]] = {}
        self._arrived = asyncio.Event()
        self._fetching = 0
        self._heard_at = asyncio.get_running_loop().time()

    def __repr__(self) -> str:
        return f"<LogMember {self.tag} of {self.group!r}, {self.unsettled} unsettled>"

    # As a consumer -----------------------------------------------------------------------------

    def credit(self) -> int:
        if self._waiting_bytes >= MOST_WAITING_BYTES:
            return 0
        return self.prefetch - self.unsettled

    def deliver(self, queue: HeldQueue, entries: Sequence[Entry]) -> None:
        for entry in entries:
            assert isinstance(entry, LogEntry)
            self._waiting.append(entry)
            self._waiting_bytes += len(entry.message.body)
        self.delivered += len(entries)
        self._arrived.set()

    def cancelled(self) -> None:
        self.is_gone = True
        self._arrived.set()

    def describe(self) -> dict[str, Any]:
        name = f"HTTP API ({self.tag})"
        return {
            "consumer_tag": self.tag,
            "ack_required": True,
            "exclusive": False,
            "prefetch_count": self.prefetch,
            "active": True,
            "activity_status": "up",
            "arguments": dict(self.arguments),
            "unacknowledged": self.unsettled,
            "delivered": self.delivered,
            "queue": {"name": self.log.name, "vhost": self.vhost},
            "channel_details": {
                "name": name,
                "number": 0,
                "connection_name": name,
                "peer_host": "",
                "peer_port": 0,
                "user": self._user,
                "node": self._broker.settings.node_name,
            },
        }

    # As a client -------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        return len(self._waiting) + sum(map(len, self._fetched.values()))

    @property
    def partitions(self) -> list[int]:
        """What it has of the log right now."""
        reading = self._reading
        return reading.partitions if reading is not None else []

    @property
    def _reading(self) -> Reading | None:
        return self.log.readers.maybe_reading(self)

    @property
    def _is_behind(self) -> bool:
        """Whether there are records that are only waiting to be read from the disk."""
        reading = self._reading
        if reading is None or self.credit() <= 0:
            return False
        return any(cursor.is_behind for cursor in reading.cursors)

    def is_silent(self, now: float) -> bool:
        return not self._fetching and now - self._heard_at > self.session

    async def fetch(self, count: int, wait: float) -> list[LogEntry]:
        """The next records, waiting for the first one up to `wait` seconds.

        What is in the log already is waited for a little in any case: it has to be read.
        """
        self._fetching += 1
        try:
            found = self._take(count)
            if not found and self._is_behind:
                wait = max(wait, LONGEST_READ)
            if not found and wait > 0:
                found = await self._next(count, wait)
            return found
        finally:
            self._fetching -= 1
            self._heard_at = asyncio.get_running_loop().time()

    async def _next(self, count: int, wait: float) -> list[LogEntry]:
        deadline = asyncio.get_running_loop().time() + wait
        while not self.is_gone:
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                break
            if found := self._take(count):
                return found
        return []

    def _take(self, count: int) -> list[LogEntry]:
        self._forget_moved()
        found = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        for entry in found:
            assert entry.cursor.lease is not None
            self._fetched.setdefault(entry.cursor.lease.partition, deque()).append(entry)
            self._waiting_bytes -= len(entry.message.body)
        if found:
            self._broker.turn.touch(self.log)
        return found

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Everything below these offsets, by partition, is processed."""
        self._heard_at = asyncio.get_running_loop().time()
        self._forget_moved()
        done: list[LogEntry] = []
        for partition, offset in offsets.items():
            fetched = self._fetched.get(partition, deque())
            if fetched and offset > fetched[-1].id + 1:
                raise PreconditionFailed(
                    f"offset {offset} of partition {partition} is beyond what was fetched"
                )
        for partition, offset in offsets.items():
            fetched = self._fetched.get(partition, deque())
            while fetched and fetched[0].id < offset:
                done.append(fetched.popleft())
        self._settle(done, Outcome.ACK)

    def _forget_moved(self) -> None:
        """What is another member's now is not given out any more, and not committed."""
        moved = [entry for entry in self._waiting if entry.cursor.is_closed]
        if moved:
            self._waiting = deque(e for e in self._waiting if not e.cursor.is_closed)
            self._waiting_bytes = sum(len(e.message.body) for e in self._waiting)
        for partition, fetched in list(self._fetched.items()):
            kept = deque(entry for entry in fetched if not entry.cursor.is_closed)
            moved += [entry for entry in fetched if entry.cursor.is_closed]
            self._fetched[partition] = kept
        self._settle(moved, Outcome.REQUEUE)

    def _settle(self, entries: list[LogEntry], outcome: Outcome) -> None:
        if entries:
            self.log.settle(entries, outcome, self.actor)
            self._broker.turn.touch(self.log)


class LogMembers:
    """The members over HTTP there are, by their tags."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._members: dict[str, LogMember] = {}

    def __len__(self) -> int:
        return len(self._members)

    def join(self, where: Place, user: str, asked: Joining) -> LogMember:
        member = LogMember(self._broker, where, user, asked)
        member.log.add_consumer(member)
        self._members[member.tag] = member
        self._watch(member)
        return member

    def find(self, log: Held, group: str, tag: str) -> LogMember:
        member = self._members.get(tag)
        if member is None or member.is_gone or member.log is not log or member.group != group:
            raise NotFound(
                f"no member '{tag}' in group '{group}': it left, or was silent for too long"
            )
        return member

    def leave(self, member: LogMember) -> None:
        self._members.pop(member.tag, None)
        if not member.is_gone:
            member.log.remove_consumer(member)
            member.cancelled()

    def _watch(self, member: LogMember) -> None:
        loop = asyncio.get_running_loop()

        def look() -> None:
            if member.is_gone or member.log.is_closed:
                self._members.pop(member.tag, None)
            elif member.is_silent(loop.time()):
                self.leave(member)
            else:
                self._watch(member)

        loop.call_later(member.session / 4, look)
