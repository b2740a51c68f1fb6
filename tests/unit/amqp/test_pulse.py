"""The wheel of sessions: looked at when due, and never after they were removed."""

from __future__ import annotations

from typing import Any, cast

from amqp_server.pulse import MOST_AT_ONCE, Pulse


class Looked:
    def __init__(self, alone: float) -> None:
        self.alone = alone
        self.at: list[float] = []
        self.is_over = False

    def beat(self, now: float) -> float:
        self.at.append(now)
        return self.alone


def _session(alone: float) -> Any:
    return cast(Any, Looked(alone))


def test_session_is_looked_at_when_it_said() -> None:
    pulse, often, seldom = Pulse(), _session(0), _session(10)
    pulse.add(often, 0)
    pulse.add(seldom, 0)
    for quarter in range(0, 61):
        pulse.beat(quarter / 4)
    assert len(often.at) == 61
    assert seldom.at == [0, 10]
    assert len(pulse) == 2


def test_removed_session_is_left_alone_and_leaves_nothing() -> None:
    pulse, gone = Pulse(), _session(5)
    pulse.add(gone, 0)
    pulse.remove(gone)
    pulse.remove(gone)
    pulse.beat(100)
    assert gone.at == [] and len(pulse) == 0 and "slots=0" in repr(pulse)


def test_session_that_has_ended_is_not_looked_at_again() -> None:
    pulse, over = Pulse(), _session(0)
    pulse.add(over, 0)
    over.is_over = True
    pulse.beat(1)
    pulse.beat(2)
    assert over.at == [1] and len(pulse) == 0


def test_one_session_may_remove_another() -> None:
    pulse, second = Pulse(), _session(0)

    class Remover(Looked):
        def beat(self, now: float) -> float:
            pulse.remove(second)
            return super().beat(now)

    first = cast(Any, Remover(0))
    pulse.add(first, 0)
    pulse.add(second, 0)
    pulse.beat(0)
    assert second.at == [] and len(pulse) == 1


def test_clock_that_jumps_far_finds_everything_due() -> None:
    pulse, one = Pulse(), _session(30)
    pulse.add(one, 0)
    pulse.beat(1e9)
    assert one.at == [1e9]


def test_a_crowd_is_looked_at_in_portions() -> None:
    pulse, crowd = Pulse(), [_session(10) for _ in range(3 * MOST_AT_ONCE)]
    for one in crowd:
        pulse.add(one, 0)
    assert [pulse.beat(1 + portion) for portion in range(4)] == [True, True, False, False]
    assert [len(one.at) for one in crowd] == [1] * len(crowd) and len(pulse) == len(crowd)
