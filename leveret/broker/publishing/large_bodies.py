"""Stores large content before the messages that it belongs to, a few parts per batch.

That is the body of a large message, and the content of a large transaction. A commit of 128 MiB
would take half a second, and every other client's confirm would wait for it. After a crash between
the parts and their messages, nobody refers to the parts, and retention deletes them. Event-loop
thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from leveret.broker.vhost import Plan
from leveret.model.message import PART_BYTES, PARTS_FROM, LargeBody, Message, part_count
from leveret.model.run import Run
from leveret.model.store import StagedRuns

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

PARTS_PER_BATCH = 4
STAGED_FROM = 2 * PART_BYTES
"""The content of a smaller transaction is stored with its commit."""


def needs_parts(broker: Broker, plan: Plan, message: Message) -> bool:
    """Whether a queue will store this message, and its body is to be stored before."""
    if message.body_size <= PARTS_FROM or broker.settings.memory:
        return False
    return any(target.stores_content(message.scan.persistent) for target in plan.targets)


def store_parts(
    broker: Broker,
    body: LargeBody,
    on_stored: Callable[[], None],
    on_failed: Callable[[], None],
) -> None:
    """Store all parts; then the body has its `first_part`, and `on_stored` is called."""
    store, parts = broker.store, body.parts()
    first_id = next_id = store.reserve_parts(part_count(len(body)))

    def give_up() -> None:
        store.release_parts(first_id, next_id - first_id)
        on_failed()

    def store_next() -> None:
        nonlocal next_id
        portion = list(islice(parts, PARTS_PER_BATCH))
        if portion:
            store.append_parts(next_id, portion)
            next_id += len(portion)
            broker.commit_waiters.when_committed(store.batch_number, store_next, give_up)
            broker.scheduler.schedule()
        else:
            body.first_part = first_id
            on_stored()

    store_next()


def runs_to_stage(broker: Broker, publishes: Iterable[tuple[Plan, Run]]) -> list[Run]:
    """The runs of a transaction whose content is to be stored before it is committed."""
    if broker.settings.memory:
        return []
    runs = [
        run
        for plan, run in publishes
        if run.large_body is None
        and any(target.stores_content(run.persistent) for target in plan.targets)
    ]
    return runs if sum(run.content_size for run in runs) > STAGED_FROM else []


def stage_runs(
    broker: Broker,
    runs: Sequence[Run],
    on_staged: Callable[[list[StagedRuns]], None],
    on_failed: Callable[[], None],
) -> None:
    """Store the content of runs that are not published yet, about `PART_BYTES` per batch."""
    store, portions = broker.store, _portions(runs)
    staged: list[StagedRuns] = []

    def give_up() -> None:
        for one in staged:
            store.discard(one)
        on_failed()

    def stage_next() -> None:
        portion = next(portions, None)
        if portion is None:
            on_staged(staged)
            return
        staged.append(store.stage(portion))
        broker.commit_waiters.when_committed(store.batch_number, stage_next, give_up)
        broker.scheduler.schedule()

    stage_next()


def _portions(runs: Sequence[Run]) -> Iterator[list[Run]]:
    portion: list[Run] = []
    room = PART_BYTES
    for run in runs:
        size = run.content_size
        if portion and size > room:
            yield portion
            portion, room = [], PART_BYTES
        portion.append(run)
        room -= size
    if portion:
        yield portion
