"""Stores the body of a large message before the message itself, a few parts per batch.

A commit of 128 MiB would take half a second, and every other client's confirm would wait for it.
After a crash between the parts and their message, nobody refers to the parts, and retention deletes
them. Event-loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from leveret.broker.vhost import Plan
from leveret.model.message import PARTS_FROM, LargeBody, Message

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

PARTS_PER_BATCH = 4


def needs_parts(broker: Broker, plan: Plan, message: Message) -> bool:
    """Whether a queue will store this message, and its body is to be stored before."""
    if message.body_size <= PARTS_FROM or broker.settings.memory:
        return False
    return any(target.stores_content(message) for target in plan.targets)


def store_parts(
    broker: Broker,
    body: LargeBody,
    on_stored: Callable[[], None],
    on_failed: Callable[[], None],
) -> None:
    """Store all parts; then the body has its `first_part`, and `on_stored` is called."""
    store, parts = broker.store, body.parts()
    first_id = next_id = store.reserve_parts(body)

    def store_next() -> None:
        nonlocal next_id
        portion = list(islice(parts, PARTS_PER_BATCH))
        if portion:
            store.append_parts(next_id, portion)
            next_id += len(portion)
            broker.commit_waiters.when_committed(store.batch_number, store_next, on_failed)
            broker.scheduler.schedule()
        else:
            body.first_part = first_id
            on_stored()

    store_next()
