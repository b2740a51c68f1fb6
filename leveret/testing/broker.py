"""A broker on a thread of its own, with what tests want to see, wait for and break.

Every public method may be called from any thread but the broker's; whatever belongs to the broker
is touched on its thread alone (`call`). Nothing is on disk unless `data_dir` is given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from amqp_server.channel import Channel
from amqp_server.codec import Publish
from amqp_server.session import Session
from leveret.broker import Plan
from leveret.config import load_settings
from leveret.launch import RunningBroker, ThreadedBroker, in_process_settings
from leveret.model.message import Message
from leveret.testing.clock import LeveretClock
from leveret.testing.jump import jump
from leveret.testing.published import Published
from queues import HeldQueue

WAIT_SECONDS = 30.0
LOOK_SECONDS = 0.002
ALARM = "test"


class LeveretBroker(ThreadedBroker):
    """`with LeveretBroker() as broker:` listens at `broker.url`; settings as in `leveret serve`."""

    def __init__(self, **settings: Any) -> None:
        self.clock = LeveretClock()
        checked = load_settings(settings)
        super().__init__(
            in_process_settings(**{name: getattr(checked, name) for name in settings}), self.clock
        )
        self._seen: list[Published] = []
        self._nacks_due = 0

    def _make(self) -> RunningBroker:
        running = super()._make()
        running.amqp.session_type = _watched_by(self)
        return running

    def __enter__(self) -> LeveretBroker:
        super().__enter__()
        self.clock.jump = self._jump
        return self

    def _jump(self, milliseconds: int, heartbeats: bool) -> None:
        jumping = jump(self._running(), self.clock, milliseconds, heartbeats)
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(jumping, self._loop).result()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clock.jump = None
        self.drop_connections()  # a client that nobody runs any more would not answer a close
        super().__exit__(kind, error, trace)

    # Looking and waiting -----------------------------------------------------------------------

    def wait_depth(
        self,
        queue: str,
        count: int,
        *,
        unacked: int | None = None,
        vhost: str = "/",
        timeout: float = WAIT_SECONDS,
    ) -> None:
        """Until exactly `count` messages are ready (and `unacked` are with consumers, if given)."""

        def missing() -> str:
            held = self._maybe_queue(queue, vhost)
            if held and held.ready_count == count and unacked in (None, held.unacked_count):
                return ""
            also = "" if unacked is None else f" and {unacked} unacked"
            return f"{_state(queue, held)}; wanted {count} ready{also}"

        self._wait(missing, timeout)

    def wait_acked(
        self, queue: str, count: int = 1, *, vhost: str = "/", timeout: float = WAIT_SECONDS
    ) -> None:
        """Until consumers have acknowledged `count` messages of a queue since it was declared."""

        def missing() -> str:
            held = self._maybe_queue(queue, vhost)
            acked = held.counters.acked if held else 0
            if acked >= count:
                return ""
            return f"{_state(queue, held)}, {acked} acked; wanted {count} acked"

        self._wait(missing, timeout)

    def published(
        self,
        exchange: str | None = None,
        routing_key: str | None = None,
        *,
        at_least: int = 0,
        timeout: float = WAIT_SECONDS,
    ) -> list[Published]:
        """What clients have published, oldest first; waits until there are `at_least` so many."""

        def chosen() -> list[Published]:
            return [
                one
                for one in self._seen
                if exchange in (None, one.exchange) and routing_key in (None, one.routing_key)
            ]

        def missing() -> str:
            found = len(chosen())
            return "" if found >= at_least else f"{found} published; wanted at least {at_least}"

        self._wait(missing, timeout)
        return self.call(chosen)

    async def wait_depth_async(self, *arguments: Any, **named: Any) -> None:
        """`wait_depth` for asyncio tests, whose loop goes on meanwhile."""
        await asyncio.to_thread(self.wait_depth, *arguments, **named)

    async def wait_acked_async(self, *arguments: Any, **named: Any) -> None:
        """`wait_acked` for asyncio tests, whose loop goes on meanwhile."""
        await asyncio.to_thread(self.wait_acked, *arguments, **named)

    async def published_async(self, *arguments: Any, **named: Any) -> list[Published]:
        """`published` for asyncio tests, whose loop goes on meanwhile."""
        return await asyncio.to_thread(self.published, *arguments, **named)

    def _wait(self, missing: Callable[[], str], timeout: float) -> None:
        """`missing` runs on the broker's thread and says what is, or nothing."""
        deadline = time.monotonic() + timeout
        while lack := self.call(missing):
            if time.monotonic() > deadline:
                raise AssertionError(f"{lack} (waited {timeout:g} s)")
            time.sleep(LOOK_SECONDS)

    def _maybe_queue(self, name: str, vhost: str) -> HeldQueue | None:
        known = self._running().broker.vhosts.get(vhost)
        return known.queues.get(name) if known else None

    def _running(self) -> RunningBroker:
        if self.running is None:
            raise RuntimeError("the broker has not been started: `with LeveretBroker() as ...`")
        return self.running

    # Faults ------------------------------------------------------------------------------------

    def drop_connections(self, name: str | None = None) -> int:
        """Cut clients off without a word, as a broken network does; how many there were.

        `name` chooses those that gave themselves this `connection_name`.
        """

        def drop() -> int:
            chosen = [
                session
                for session in self._running().amqp.sessions
                if name in (None, session.client_properties.get("connection_name"))
            ]
            for session in chosen:
                session.line.end_in(0)
            return len(chosen)

        return self.call(drop)

    def nack_next(self, count: int = 1) -> None:
        """The next publishes that ask for a confirm are refused: `basic.nack`, and not stored."""

        def add() -> None:
            self._nacks_due += count

        self.call(add)

    @contextmanager
    def block_publishers(self, reason: str = "a test says so") -> Iterator[None]:
        """Inside, as in a memory alarm: `connection.blocked`, and publishers are not read."""
        alarms = self._running().broker.alarms
        self.call(lambda: alarms.set(ALARM, reason))
        try:
            yield
        finally:
            self.call(lambda: alarms.set(ALARM, ""))

    # On the broker's thread --------------------------------------------------------------------

    def _admits(self, channel: Channel, message: Message) -> bool:
        """Note what a client published, unless it is to be refused."""
        if channel.confirms is not None and self._nacks_due:
            self._nacks_due -= 1
            return False
        self._seen.append(Published.of(channel.vhost.name, message))
        return True


def _watched_by(broker: LeveretBroker) -> type[Session]:
    class WatchedChannel(Channel):
        def on_publish(self, publish: Publish, messages: list[Message]) -> None:
            for message in messages:  # runs would go past `route`
                self._publish_one(publish, message)

        def route(self, mandatory: bool, plan: Plan, message: Message) -> None:
            if broker._admits(self, message):
                super().route(mandatory, plan, message)
            elif self.confirms is not None and self.confirms.refused():
                self.session.confirm(self)

    class WatchedSession(Session):
        channel_type = WatchedChannel

    return WatchedSession


def _state(name: str, queue: HeldQueue | None) -> str:
    if queue is None:
        return f"queue {name!r} is not declared"
    counts = f"{queue.ready_count} ready, {queue.unacked_count} unacked"
    return f"queue {name!r}: {counts}, {len(queue.consumers)} consumers"
