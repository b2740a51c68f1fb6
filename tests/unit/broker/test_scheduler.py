"""The loop scheduler: order, time budgets, and failing callbacks."""

from typing import Any

from leveret.broker.runtime.scheduler import (
    DISPATCH_BUDGET_SECONDS,
    READ_BUDGET_SECONDS,
    LoopScheduler,
)


class FakeQueue:
    """Stands for a queue and for a connection with output."""

    def __init__(self, calls, fails):
        self.calls, self.fails, self.dispatch_pending = calls, fails, False

    def dispatch(self):
        self.dispatch_pending = False
        self.flush()

    def flush(self):
        if self.fails:
            raise RuntimeError("planted")
        self.calls.append(self)


def test_failing_queue_and_output_do_not_stop_the_tick(caplog):
    scheduled: list[Any] = []
    calls: list[Any] = []
    scheduler: Any = LoopScheduler(scheduled.append, lambda: calls.append("store"), lambda: 0.0)
    for number in (1, 2):
        bad, good = FakeQueue(calls, True), FakeQueue(calls, False)
        for queue in (bad, good):
            scheduler.mark_ready(queue)
            scheduler.mark_output(queue)
        assert len(scheduled) == number
        scheduled[-1]()
        assert calls == [good, "store", good]
        calls.clear()
    assert caplog.text.count("planted") >= 4


class Reader:
    """Each of its parts takes more than half of the read budget."""

    def __init__(self, scheduler, clock, parts, read):
        self.scheduler, self.clock, self.parts, self.read = scheduler, clock, parts, read

    def resume(self):
        while self.parts and self.scheduler.take_read_budget(self.clock[0]):
            self.read.append(self.parts.pop(0))
            self.clock[0] += 0.6 * READ_BUDGET_SECONDS
        if self.parts:
            self.scheduler.enqueue_reader(self.resume)


def test_readers_alternate_within_the_read_budget():
    clock, scheduled, read = [0.0], list[Any](), list[str]()
    scheduler = LoopScheduler(scheduled.append, lambda: read.append("|"), lambda: clock[0])
    for name in "abc":
        Reader(scheduler, clock, [name] * 3, read).resume()
    while scheduled:
        began = clock[0]
        scheduled.pop()()
        assert clock[0] - began < 1.3 * READ_BUDGET_SECONDS
    assert "".join(read) == "aaab|cc|bb|c|"
    assert scheduler.take_read_budget(clock[0] + 60)  # a new tick has a new budget


def test_queues_alternate_within_the_dispatch_budget():
    clock, scheduled, calls = [0.0], list[Any](), list[Any]()
    scheduler: Any = LoopScheduler(scheduled.append, lambda: calls.append("|"), lambda: clock[0])

    class SlowQueue(FakeQueue):
        def flush(self):
            super().flush()
            clock[0] += 0.6 * DISPATCH_BUDGET_SECONDS
            if calls.count(self) < 2:
                scheduler.mark_ready(self)  # it has more to deliver

    first, second, third = (SlowQueue(calls, False) for _ in range(3))
    for queue in (first, second, third):
        scheduler.mark_ready(queue)
    while scheduled:
        scheduled.pop()()
    assert calls == [first, second, "|", third, first, "|", second, third, "|"]


def test_failing_reader_does_not_stop_the_others(caplog):
    scheduled, read = list[Any](), list[str]()
    scheduler = LoopScheduler(scheduled.append, lambda: None, lambda: 0.0)

    def fail():
        raise RuntimeError("planted")

    scheduler.enqueue_reader(fail)
    scheduler.enqueue_reader(lambda: read.append("read"))
    scheduled.pop()()
    assert read == ["read"] and "planted" in caplog.text and not scheduled
