"""A socket is read, and its input handled, only as far as the limits of a connection allow."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.amqp_server.flow_control import (
    MAX_DEFERRED_BYTES,
    MAX_UNSENT_BYTES,
    PARTIAL_BYTES_TOLERATED,
    FlowControl,
    PauseReason,
    ReadGate,
)
from leveret.broker import BACKLOG_HIGH
from leveret.model.clock import ManualClock
from tests.unit.amqp_server.recorder import Recorder, open_wire, publish_frames


class FakeTransport:
    def __init__(self) -> None:
        self.is_reading = True
        self.unsent = 0

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def unsent_bytes(self) -> int:
        return self.unsent


class FakeScheduler:
    """The read budget of a tick, which tests use up."""

    def __init__(self) -> None:
        self.has_budget = True
        self.readers: list[Callable[[], None]] = []

    def take_read_budget(self, now: float) -> bool:
        return self.has_budget

    def enqueue_reader(self, resume: Callable[[], None]) -> None:
        self.readers.append(resume)

    def run_next(self) -> None:
        self.readers.pop(0)()


class Subject:
    """A flow control with a real wire; its connection and its broker are fakes."""

    def __init__(self) -> None:
        self.transport, self.scheduler, self.clock = FakeTransport(), FakeScheduler(), ManualClock()
        self.wire, self.sink = open_wire()
        self.memory_checks: list[bool] = []
        self.paused: list[FlowControl] = []
        self.dropped: list[str] = []
        self.blocked: list[str] = []
        self.broker: Any = SimpleNamespace(
            clock=self.clock,
            scheduler=self.scheduler,
            store=SimpleNamespace(backlog=0),
            alarms=SimpleNamespace(reason=""),
            settings=SimpleNamespace(login_buffer=100),
            resource_monitor=SimpleNamespace(
                read_allowance=SimpleNamespace(bytes=1_000),
                check_memory=lambda: self.memory_checks.append(True),
                pause_until_backlog_drained=self.paused.append,
            ),
        )
        self.connection: Any = SimpleNamespace(
            broker=self.broker,
            name="test",
            is_over=False,
            is_authenticated=True,
            channels={},
            drop=self.dropped.append,
            block=self.blocked.append,
        )
        connection, transport = cast(Any, self.connection), cast(Any, self.transport)
        self.flow = FlowControl(connection, transport, self.wire)

    @property
    def messages(self) -> list[bytes]:
        recorder: Recorder = self.sink
        return [call[-1] for call in recorder.calls]


@pytest.fixture
def subject() -> Subject:
    return Subject()


def message(number: int) -> bytes:
    return bytes(publish_frames(1, "x", "k", body=str(number).encode()))


def test_reading_resumes_when_the_last_pause_reason_is_gone() -> None:
    transport: Any = FakeTransport()
    gate = ReadGate(transport)
    gate.pause(PauseReason.ALARM)
    gate.pause(PauseReason.OUTPUT_UNREAD)
    gate.resume(PauseReason.OUTPUT_UNREAD)
    assert not transport.is_reading
    gate.resume(PauseReason.ALARM)
    assert transport.is_reading


def test_resuming_without_a_pause_does_nothing() -> None:
    transport: Any = FakeTransport()
    transport.is_reading = False
    ReadGate(transport).resume(PauseReason.ALARM)
    assert not transport.is_reading


def test_input_over_the_budget_is_buffered_and_handled_in_a_later_tick(subject: Subject) -> None:
    subject.flow.receive(message(1))
    subject.scheduler.has_budget = False
    subject.flow.receive(message(2))
    subject.flow.receive(message(3))  # as TLS may deliver it after a pause
    assert subject.messages == [b"1"] and not subject.transport.is_reading
    assert len(subject.scheduler.readers) == 1
    assert subject.flow.pending_bytes == len(message(2) + message(3))
    subject.scheduler.run_next()
    assert subject.messages == [b"1", b"2", b"3"] and subject.transport.is_reading
    assert subject.flow.pending_bytes == 0
    assert subject.flow.received == len(message(1) * 3)


def test_buffered_input_is_handled_when_the_peer_disconnects(subject: Subject) -> None:
    subject.scheduler.has_budget = False
    subject.flow.receive(message(1) * 1_000)
    subject.flow.read_to_end()
    assert len(subject.messages) == 1_000


def test_queued_reader_of_a_lost_connection_does_nothing(subject: Subject) -> None:
    subject.scheduler.has_budget = False
    subject.flow.receive(message(1))
    subject.wire.detach()
    subject.flow.detach()
    subject.scheduler.run_next()
    assert not subject.messages and not subject.flow.is_writable


def test_client_that_sends_too_much_before_its_login_is_dropped(subject: Subject) -> None:
    subject.connection.is_authenticated = False
    subject.flow.receive(message(1)[:-1])
    assert not subject.dropped
    subject.scheduler.has_budget = False
    subject.flow.receive(bytes(101))
    assert subject.dropped == ["sent more than 100 bytes before it logged in"]
    assert subject.wire.ignores_input and subject.flow.pending_bytes < 200


def test_publisher_waits_while_the_store_has_a_backlog(subject: Subject) -> None:
    subject.flow.on_first_publish()
    subject.broker.store.backlog = BACKLOG_HIGH + 1
    subject.flow.receive(message(1))
    assert subject.paused == [subject.flow] and not subject.transport.is_reading
    subject.flow.on_backlog_drained()
    assert subject.transport.is_reading


def test_memory_is_checked_when_publishers_have_used_the_allowance(subject: Subject) -> None:
    subject.flow.receive(message(1) * 50)
    assert not subject.memory_checks  # it has not published before
    subject.flow.on_first_publish()
    subject.flow.receive(message(1) * 50)
    assert subject.memory_checks == [True]


def test_alarm_blocks_a_connection_with_a_large_partial_frame(subject: Subject) -> None:
    large = publish_frames(1, "x", "k", body=bytes(2 * PARTIAL_BYTES_TOLERATED))[:-1]
    subject.flow.receive(large)
    assert not subject.blocked
    subject.broker.alarms.reason = "low on memory"
    subject.flow.receive(b"")
    assert subject.blocked == ["low on memory"]


def test_deferred_methods_over_the_limit_pause_reading(subject: Subject) -> None:
    charged = [subject.flow.add_deferred(MAX_DEFERRED_BYTES // 2) for _ in range(2)]
    assert not subject.transport.is_reading
    assert subject.flow.pending_bytes == sum(charged) > MAX_DEFERRED_BYTES
    subject.flow.release_deferred(charged[0])
    assert subject.transport.is_reading
    subject.flow.release_deferred(charged[1])
    assert subject.flow.pending_bytes == 0


def test_output_after_the_disconnect_is_harmless(subject: Subject) -> None:
    """The end of the tick may flush a connection whose socket was lost in the same tick."""
    subject.flow.detach()
    subject.flow.pause_if_output_unread()
    assert not subject.flow.has_unread_output


def test_unread_output_pauses_reading_until_it_drains(subject: Subject) -> None:
    calls: list[str] = []
    subject.transport.unsent = MAX_UNSENT_BYTES + 1
    assert not subject.flow.has_unread_output
    subject.flow.on_write_buffer_full()
    subject.flow.pause_if_output_unread()
    subject.flow.when_drained(lambda: calls.append("drained"))
    assert not subject.transport.is_reading and not calls
    subject.flow.on_write_buffer_drained()
    assert subject.transport.is_reading and calls == ["drained"]


def test_pauses_of_our_own_do_not_count_as_silence(subject: Subject) -> None:
    subject.clock.advance(100)
    assert subject.flow.measure_silence(subject.clock.monotonic()) == 100
    subject.flow.pause(PauseReason.AUTHENTICATING)
    assert subject.flow.measure_silence(subject.clock.monotonic()) == 100
    subject.flow.pause(PauseReason.ALARM)
    assert subject.flow.measure_silence(subject.clock.monotonic()) == 0
