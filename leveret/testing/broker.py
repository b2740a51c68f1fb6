"""A broker on its own thread, with methods to inspect it, wait for it and inject faults.

Every public method may be called from any thread except the broker's; the broker's own objects are
used on its thread only (see `call`). Nothing is written to disk unless `data_dir` is given.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from leveret.amqp_server.channel import Channel
from leveret.amqp_server.codec import Publish
from leveret.amqp_server.connection import AmqpConnection
from leveret.broker import Plan
from leveret.broker.messages import browse
from leveret.launch import CALL_SECONDS, RunningBroker, ThreadedBroker
from leveret.model.message import Message, decode_properties
from leveret.model.run import Run
from leveret.queues.port import Queue
from leveret.testing.clock import LeveretClock

WAIT_SECONDS = 30.0
POLL_SECONDS = 0.002
ALARM = "test"
MAX_STEPS = 10_000
"""Steps of one jump in time; a jump over more deadlines takes several of them at once."""
TICKS_PER_STEP = 5


@dataclass(frozen=True, slots=True)
class Published:
    """One message as a client published it over AMQP, whether or not it was routed."""

    vhost: str
    exchange: str
    routing_key: str
    properties: dict[str, Any]
    body: bytes

    @staticmethod
    def of(vhost: str, message: Message) -> Published:
        properties = decode_properties(message.properties)
        return Published(
            vhost, message.exchange, message.routing_key, properties, bytes(message.body)
        )

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.get("headers") or {})

    def json(self) -> Any:
        return json.loads(self.body)


class LeveretBroker(ThreadedBroker):
    """`with LeveretBroker() as broker:` listens at `broker.url`; settings as in `leveret serve`."""

    def __init__(self, **settings: Any) -> None:
        self.clock = LeveretClock()
        super().__init__(None, self.clock, **settings)
        self._published: list[Published] = []
        self._nacks_due = 0

    def _make(self) -> RunningBroker:
        running = super()._make()
        running.amqp.connection_type = _recording_connection(self)
        return running

    def __enter__(self) -> LeveretBroker:
        super().__enter__()
        self.clock.jump = self._jump
        return self

    def _jump(self, milliseconds: int, heartbeats: bool) -> None:
        jump = _jump(self._running(), self.clock, milliseconds, heartbeats)
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(jump, self._loop).result()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.running is None:  # killed by the test
            return
        self.clock.jump = None
        self.drop_connections()  # a client that no longer runs would not answer a close
        self._end(kind, error, trace)

    def _end(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """Wait until the broker has stopped; a later start listens on the same ports."""
        running = self._running()
        http = running.http_address
        super().__exit__(kind, error, trace)
        self._settings = replace(
            self._settings,
            amqp_port=running.amqp_address[1],
            http_port=http[1] if http is not None else 0,
        )
        self.running = None

    # Inspecting and waiting --------------------------------------------------------------------

    def wait_depth(
        self,
        queue: str,
        count: int,
        *,
        unacked: int | None = None,
        vhost: str = "/",
        timeout: float = WAIT_SECONDS,
    ) -> None:
        """Wait until exactly `count` messages are ready and, if given, `unacked` are unacked."""

        def missing() -> str:
            current = self._maybe_queue(queue, vhost)
            is_ready = current is not None and current.ready_count == count
            if current and is_ready and unacked in (None, current.unacked_count):
                return ""
            also = "" if unacked is None else f" and {unacked} unacked"
            return f"{_state(queue, current)}; expected {count} ready{also}"

        self._wait(missing, timeout)

    def wait_acked(
        self, queue: str, count: int = 1, *, vhost: str = "/", timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until `count` messages of a queue have been acknowledged since it was declared."""

        def missing() -> str:
            current = self._maybe_queue(queue, vhost)
            acked = current.counters.acked if current else 0
            if acked >= count:
                return ""
            return f"{_state(queue, current)}, {acked} acked; expected {count} acked"

        self._wait(missing, timeout)

    def published(
        self,
        exchange: str | None = None,
        routing_key: str | None = None,
        *,
        at_least: int = 0,
        timeout: float = WAIT_SECONDS,
    ) -> list[Published]:
        """Return what clients have published, oldest first; wait until there are `at_least`."""

        def matching() -> list[Published]:
            return [
                message
                for message in self._published
                if exchange in (None, message.exchange)
                and routing_key in (None, message.routing_key)
            ]

        def missing() -> str:
            count = len(matching())
            return "" if count >= at_least else f"{count} published; expected at least {at_least}"

        self._wait(missing, timeout)
        return self.call(matching)

    def messages(self, queue: str, *, vhost: str = "/") -> list[Published]:
        """Return the messages in a queue, unacked ones first; they stay there unchanged."""

        async def read() -> list[Published]:
            declared = self._maybe_queue(queue, vhost)
            if declared is None:
                raise AssertionError(_state(queue, None))
            count = declared.ready_count + declared.unacked_count
            browsed = await browse(self._running().broker, declared, 0, count)
            return [Published.of(vhost, each.message) for each in browsed]

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(read(), self._loop).result(CALL_SECONDS)

    async def wait_depth_async(self, *arguments: Any, **named: Any) -> None:
        """`wait_depth` for asyncio tests; their loop keeps running."""
        await asyncio.to_thread(self.wait_depth, *arguments, **named)

    async def wait_acked_async(self, *arguments: Any, **named: Any) -> None:
        """`wait_acked` for asyncio tests; their loop keeps running."""
        await asyncio.to_thread(self.wait_acked, *arguments, **named)

    async def published_async(self, *arguments: Any, **named: Any) -> list[Published]:
        """`published` for asyncio tests; their loop keeps running."""
        return await asyncio.to_thread(self.published, *arguments, **named)

    def _wait(self, missing: Callable[[], str], timeout: float) -> None:
        """Poll `missing` on the broker's thread until it returns an empty text."""
        deadline = time.monotonic() + timeout
        while problem := self.call(missing):
            if time.monotonic() > deadline:
                raise AssertionError(f"{problem} (waited {timeout:g} s)")
            time.sleep(POLL_SECONDS)

    def _maybe_queue(self, name: str, vhost: str) -> Queue | None:
        virtual_host = self._running().broker.vhosts.get(vhost)
        return virtual_host.queues.get(name) if virtual_host else None

    def _running(self) -> RunningBroker:
        if self.running is None:
            raise RuntimeError("the broker is not running; use `with LeveretBroker() as broker:`")
        return self.running

    # Faults ------------------------------------------------------------------------------------

    def drop_connections(self, name: str | None = None) -> int:
        """Drop connections without a close, as a broken network does; return their number.

        `name` selects the connections with this `connection_name`.
        """

        def drop() -> int:
            connections = [
                connection
                for connection in self._running().amqp.connections
                if name in (None, connection.client_properties.get("connection_name"))
            ]
            for connection in connections:
                connection.transport.close_in(0)
            return len(connections)

        return self.call(drop)

    def kill(self) -> None:
        """End the broker as `kill -9` ends a process: what is not committed is lost.

        Clients lose their connections without a close. `restart` starts it again.
        """
        self.clock.jump = None
        self._is_killed = True
        self._end()

    def restart(self) -> None:
        """Stop the broker cleanly unless it was killed, and start it again on the same ports."""
        if self._settings.memory:
            raise RuntimeError(
                "this broker keeps its data in memory, and a restart would lose it: use "
                "@pytest.mark.leveret(on_disk=True) or give LeveretBroker a data_dir"
            )
        if self.running is not None:
            self.clock.jump = None
            self.drop_connections()
            self._end()
        self.__enter__()

    def nack_next(self, count: int = 1) -> None:
        """Refuse the next publishes in confirm mode: `basic.nack`, and they are not stored."""

        def add() -> None:
            self._nacks_due += count

        self.call(add)

    @contextmanager
    def block_publishers(self, reason: str = "blocked by a test") -> Iterator[None]:
        """Block publishers as a memory alarm does: `connection.blocked`, and they are paused."""
        alarms = self._running().broker.alarms
        self.call(lambda: alarms.set(ALARM, reason))
        try:
            yield
        finally:
            self.call(lambda: alarms.set(ALARM, ""))

    # On the broker's thread --------------------------------------------------------------------

    def _accept(self, channel: Channel, message: Message) -> bool:
        """Record a published message, or return False if it is to be refused."""
        if channel.confirms is not None and self._nacks_due:
            self._nacks_due -= 1
            return False
        self._published.append(Published.of(channel.vhost.name, message))
        return True


def _recording_connection(broker: LeveretBroker) -> type[AmqpConnection]:
    class RecordingChannel(Channel):
        def on_publish(self, publish: Publish, run: Run) -> None:
            publish.plan = None  # messages with a known plan would not pass `enqueue`
            super().on_publish(publish, run)

        def enqueue(self, mandatory: bool, plan: Plan, run: Run) -> None:
            for message in run.messages:
                if broker._accept(self, message):
                    super().enqueue(mandatory, plan, Run.of([message]))
                elif self.confirms is not None:
                    self.confirms.rejected()
            run.ids = [message.id for message in run.messages]

    class RecordingConnection(AmqpConnection):
        channel_type = RecordingChannel

    return RecordingConnection


def _state(name: str, queue: Queue | None) -> str:
    if queue is None:
        return f"queue {name!r} is not declared"
    counts = f"{queue.ready_count} ready, {queue.unacked_count} unacked"
    return f"queue {name!r}: {counts}, {len(queue.consumers)} consumers"


async def _jump(running: RunningBroker, clock: LeveretClock, ms: int, heartbeats: bool) -> None:
    """Advance the clock from one deadline to the next, in order. Runs on the broker's thread.

    A message that expires into a delayed exchange, and from there into a queue with a TTL, meets
    each deadline at its own time, as if the test had slept. A broker in memory completes the work
    of one deadline before the next; work that needs the disk may finish a moment later.
    """
    running.amqp.check_ack_timeouts()  # start the timeout of deliveries that are unacked now
    remaining, shortest = ms, max(ms // MAX_STEPS, 1)
    while remaining > 0:
        next_ms = running.broker.timers.next_ms
        to_next = remaining if next_ms is None else next_ms - clock.wall_ms()
        step = min(remaining, max(to_next, shortest))
        clock.move(step)
        _run_timers(running, step / 1000, heartbeats)
        for _ in range(TICKS_PER_STEP):
            running.broker.scheduler.run_tick()
            await asyncio.sleep(0)
        remaining -= step


def _run_timers(running: RunningBroker, seconds: float, heartbeats: bool) -> None:
    broker, amqp = running.broker, running.amqp
    for connection in list(amqp.connections):
        connection.shift_timeouts(seconds, heartbeats)
        connection.check_heartbeat(broker.clock.monotonic())
    broker.timers.run()
    amqp.check_ack_timeouts()
    broker.log_manager.clean_if_due()
