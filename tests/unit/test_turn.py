"""One queue, connection or waiter that fails must not stop the others."""

from typing import Any

from leveret.broker.commits import Commits
from leveret.broker.turn import Turn


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
    turn: Any = Turn(scheduled.append, lambda: calls.append("store"))
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
