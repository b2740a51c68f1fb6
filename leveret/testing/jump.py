"""A jump in time, on the broker's thread: from one deadline to the next, each in its order.

A message that expires into a delayed exchange and on into a queue with a limit of its own meets
each of them at its own time, as it would have done had the test slept. What a broker in memory does
about a deadline is done before the next; what has to come from a disk may come a moment later.
"""

from __future__ import annotations

import asyncio

from leveret.launch import RunningBroker
from leveret.testing.clock import LeveretClock

MOST_STEPS = 10_000
ROUNDS = 5


async def jump(running: RunningBroker, clock: LeveretClock, ms: int, heartbeats: bool) -> None:
    running.amqp.look_for_late_acks()  # what is unacked now has been so since now at the latest
    left, shortest = ms, max(ms // MOST_STEPS, 1)
    while left > 0:
        next_ms = running.broker.deadlines.next_ms
        to_next = left if next_ms is None else next_ms - clock.wall_ms()
        step = min(left, max(to_next, shortest))
        clock.move(step)
        _look_around(running, step / 1000, heartbeats)
        await _settle(running)
        left -= step


def _look_around(running: RunningBroker, seconds: float, heartbeats: bool) -> None:
    hub, amqp = running.broker, running.amqp
    for session in list(amqp.sessions):
        session.connected += seconds
        session.last_received += seconds if heartbeats else 0.0
        session.beat(hub.clock.monotonic())
    hub.deadlines.run()
    amqp.look_for_late_acks()
    hub.log_keeper.tidy_if_due()


async def _settle(running: RunningBroker) -> None:
    """Let queues hand out what they were touched for, and tasks that wait for nothing end."""
    for _ in range(ROUNDS):
        running.broker.turn.end()
        await asyncio.sleep(0)
