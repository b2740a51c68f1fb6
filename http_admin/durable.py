"""Changes answer when they are on disk, and messages are taken while there is room for them."""

from __future__ import annotations

import asyncio

from http_admin.errors import ApiError
from leveret.broker import Broker
from leveret.broker.log_keeper import require_made
from leveret.model.store import Synced
from queues import HeldQueue


def require_unblocked(broker: Broker) -> None:
    """Refuse messages while an alarm holds publishers back, as it does over AMQP."""
    if broker.alarms.reason:
        raise ApiError(503, f"publishing is blocked: {broker.alarms.reason}")


async def until_durable(broker: Broker, *made: HeldQueue) -> None:
    """Return once everything done so far is on disk, and the files of logs that were made are."""
    broker.store.save(Synced())
    broker.turn.schedule()
    decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    broker.commits.after(
        broker.store.mark,
        lambda: _set(decided, True),
        lambda: _set(decided, False),
    )
    if not await decided:
        raise ApiError(503, "the change could not be written to disk")
    for queue in made:
        require_made(queue)


def _set(decided: asyncio.Future[bool], durable: bool) -> None:
    if not decided.done():
        decided.set_result(durable)
