"""The heartbeat wheel checks connections when they are due, and never after they were removed."""

from __future__ import annotations

from typing import Any, cast

from leveret.amqp_server.heartbeats import MAX_CHECKS, HeartbeatWheel


class FakeConnection:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.checked: list[float] = []
        self.is_over = False

    def check_heartbeat(self, now: float) -> float:
        self.checked.append(now)
        return self.seconds


def _connection(seconds: float) -> Any:
    return cast(Any, FakeConnection(seconds))


def test_connection_is_checked_when_it_is_due() -> None:
    wheel, often, seldom = HeartbeatWheel(), _connection(0), _connection(10)
    wheel.add(often, 0)
    wheel.add(seldom, 0)
    for quarter in range(0, 61):
        wheel.check_due(quarter / 4)
    assert len(often.checked) == 61
    assert seldom.checked == [0, 10]
    assert len(wheel) == 2


def test_removed_connection_is_not_checked_and_leaves_no_slot() -> None:
    wheel, removed = HeartbeatWheel(), _connection(5)
    wheel.add(removed, 0)
    wheel.remove(removed)
    wheel.remove(removed)
    wheel.check_due(100)
    assert removed.checked == [] and len(wheel) == 0 and "slots=0" in repr(wheel)


def test_closed_connection_is_not_checked_again() -> None:
    wheel, over = HeartbeatWheel(), _connection(0)
    wheel.add(over, 0)
    over.is_over = True
    wheel.check_due(1)
    wheel.check_due(2)
    assert over.checked == [1] and len(wheel) == 0


def test_check_of_one_connection_may_remove_another() -> None:
    wheel, second = HeartbeatWheel(), _connection(0)

    class Remover(FakeConnection):
        def check_heartbeat(self, now: float) -> float:
            wheel.remove(second)
            return super().check_heartbeat(now)

    first = cast(Any, Remover(0))
    wheel.add(first, 0)
    wheel.add(second, 0)
    wheel.check_due(0)
    assert second.checked == [] and len(wheel) == 1


def test_clock_jump_makes_all_connections_due() -> None:
    wheel, connection = HeartbeatWheel(), _connection(30)
    wheel.add(connection, 0)
    wheel.check_due(1e9)
    assert connection.checked == [1e9]


def test_one_call_checks_a_limited_number_of_connections() -> None:
    wheel, connections = HeartbeatWheel(), [_connection(10) for _ in range(3 * MAX_CHECKS)]
    for connection in connections:
        wheel.add(connection, 0)
    assert [wheel.check_due(1 + portion) for portion in range(4)] == [True, True, False, False]
    assert [len(connection.checked) for connection in connections] == [1] * len(connections)
    assert len(wheel) == len(connections)
