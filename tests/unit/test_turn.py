"""One queue, connection or waiter that fails must not stop the others."""

from typing import Any

from leveret.broker.commits import Commits
from leveret.broker.turn import HANDING_OUT_SECONDS, READING_SECONDS, Turn


class Touched:
    def __init__(self, calls, fails):
        self.calls, self.fails, self.touched = calls, fails, False

    def dispatch(self):
        self.touched = False
        self.flush()

    def flush(self):
        if self.fails:
            raise RuntimeError("planted")
        self.calls.append(self)


def test_a_turn_goes_on_after_a_failure_and_so_does_the_next(caplog):
    scheduled: list[Any] = []
    calls: list[Any] = []
    turn: Any = Turn(scheduled.append, lambda: calls.append("store"), lambda: 0.0)
    for number in (1, 2):
        bad, good = Touched(calls, True), Touched(calls, False)
        for one in (bad, good):
            turn.touch(one)
            turn.speak(one)
        assert len(scheduled) == number
        scheduled[-1]()
        assert calls == [good, "store", good]
        calls.clear()
    assert caplog.text.count("planted") >= 4


class Reader:
    """Takes more than half a turn for each of its parts, as long as there is time."""

    def __init__(self, turn, clock, parts, read):
        self.turn, self.clock, self.parts, self.read = turn, clock, parts, read

    def go_on(self):
        while self.parts and self.turn.has_time(self.clock[0]):
            self.read.append(self.parts.pop(0))
            self.clock[0] += 0.6 * READING_SECONDS
        if self.parts:
            self.turn.wait_in_line(self.go_on)


def test_readers_take_turns_and_a_turn_is_short():
    clock, scheduled, read = [0.0], list[Any](), list[str]()
    turn = Turn(scheduled.append, lambda: read.append("|"), lambda: clock[0])
    for name in "abc":
        Reader(turn, clock, [name] * 3, read).go_on()
    while scheduled:
        began = clock[0]
        scheduled.pop()()
        assert clock[0] - began < 1.3 * READING_SECONDS
    assert "".join(read) == "aaab|cc|bb|c|"
    assert turn.has_time(clock[0] + 60)  # long after the last turn a new one begins


def test_queues_hand_out_in_turn_and_a_turn_is_short():
    clock, scheduled, calls = [0.0], list[Any](), list[Any]()
    turn: Any = Turn(scheduled.append, lambda: calls.append("|"), lambda: clock[0])

    class Slow(Touched):
        def flush(self):
            super().flush()
            clock[0] += 0.6 * HANDING_OUT_SECONDS
            if calls.count(self) < 2:
                turn.touch(self)  # it has more

    one, other, third = (Slow(calls, False) for _ in range(3))
    for queue in (one, other, third):
        turn.touch(queue)
    while scheduled:
        scheduled.pop()()
    assert calls == [one, other, "|", third, one, "|", other, third, "|"]


def test_a_reader_that_fails_does_not_keep_the_others_waiting(caplog):
    scheduled, read = list[Any](), list[str]()
    turn = Turn(scheduled.append, lambda: None, lambda: 0.0)

    def fails():
        raise RuntimeError("planted")

    turn.wait_in_line(fails)
    turn.wait_in_line(lambda: read.append("read"))
    scheduled.pop()()
    assert read == ["read"] and "planted" in caplog.text and not scheduled


def test_a_waiter_that_fails_does_not_keep_the_others_waiting(caplog):
    commits = Commits()
    told: list[int] = []

    def fails():
        raise RuntimeError("planted")

    commits.after(1, fails)
    commits.after(1, lambda: told.append(1))
    commits.after(2, fails, fails)
    commits.after(2, fails, lambda: told.append(2))
    commits.advance(1)
    commits.fail(2)
    assert told == [1, 2]
    assert "planted" in caplog.text
