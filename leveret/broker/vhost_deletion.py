"""Deletes a virtual host with everything in it.

A virtual host may have thousands of queues, so its deletion is a generator of steps. Clients lose
the virtual host with the first step. Its stored definition is marked until the last one, so that a
start after a stop or a crash in between finishes the deletion: messages and queues of a deleted
virtual host must not come back. Its name can be used again when the deletion has ended.
Event-loop thread only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leveret.broker.runtime.slices import Steps, run_in_slices
from leveret.model.definitions import VhostDefinition
from leveret.model.errors import PreconditionFailed

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

DELETING = "deleting"
"""Stored among the options of a vhost while it is being deleted."""


class VhostDeletions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self, name: str) -> None:
        """Delete a virtual host in slices; it continues if the caller is cancelled."""
        actor = self._broker.events.actor
        task = asyncio.create_task(self._run(actor.name, delete_vhost(self._broker, name)))
        self._running[name] = task
        task.add_done_callback(lambda _: self._running.pop(name))
        await asyncio.shield(task)

    async def _run(self, user: str, steps: Steps[None]) -> None:
        work = run_in_slices(steps, self._broker.store.waiting_changes)
        await self._broker.events.actor.run_as(user, work)

    async def finished(self, name: str) -> None:
        """Wait until no virtual host of this name is being deleted."""
        task = self._running.get(name)
        if task is not None:
            await asyncio.wait([task])

    def require_finished(self, name: str) -> None:
        if name in self._running:
            raise PreconditionFailed(f"vhost '{name}' is being deleted: try again in some seconds")

    async def stop(self) -> None:
        """Leave unfinished deletions to the next start."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def delete_vhost(broker: Broker, name: str) -> Steps[None]:
    """Delete a virtual host with everything in it, and close its connections."""
    vhost = broker.vhosts.pop(name)
    broker.save_vhost(vhost, {**vhost.options, DELETING: True})
    broker.close_connections(
        f"vhost '{name}' is deleted", lambda connection: connection.vhost is vhost
    )
    yield
    yield from _delete_topology(broker, vhost)
    users = broker.users
    for key in [key for key in users.permissions if key[1] == name]:
        users.clear_permission(*key)
    for topic_key in [key for key in users.topic_permissions if key[1] == name]:
        users.clear_topic_permission(*topic_key)
    broker.policies.delete_vhost(name)
    broker.parameters.delete_vhost(name)
    broker.forget_http_origins(name)
    broker.store.delete(VhostDefinition(name))
    broker.events.vhost(name, "deleted")
    broker.scheduler.schedule()


def _delete_topology(broker: Broker, vhost: VirtualHost) -> Steps[None]:
    while vhost.queues:
        vhost.remove_queue(next(iter(vhost.queues.values())))
        broker.scheduler.schedule()
        yield
    for exchange in list(vhost.exchanges.values()):
        if not exchange.name or exchange.name.startswith("amq."):
            broker.events.topology(vhost, exchange, "deleted")
        else:
            vhost.delete_exchange(exchange.name)
        yield
