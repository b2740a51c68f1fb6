"""Changes are answered once they are on disk; messages are accepted while no alarm is raised."""

from __future__ import annotations

from leveret.broker import Broker
from leveret.broker.runtime.commit_waiters import CommitOutcome
from leveret.http_admin.errors import ApiError
from leveret.queues.log.log_queue import require_created
from leveret.queues.port import Queue


def require_unblocked(broker: Broker) -> None:
    """Refuse messages while an alarm blocks publishers, as over AMQP."""
    if broker.alarms.reason:
        raise ApiError(503, f"publishing is blocked: {broker.alarms.reason}")


async def until_committed(broker: Broker, *new_queues: Queue) -> None:
    """Return once all changes so far are on disk, and the files of new logs exist."""
    if await broker.commit_waiters.committed(sync=True) is CommitOutcome.FAILED:
        raise ApiError(503, "the change could not be written to disk")
    for queue in new_queues:
        require_created(queue)
