"""What the broker does when queues, exchanges and bindings of a virtual host come and go.

Creates queues with everything they need from the broker, applies policies and tracing to new
objects, publishes events, and drops what the broker holds of deleted ones. Event-loop thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from leveret.bindings import Binding
from leveret.broker.events import firehose
from leveret.broker.metrics import add_values, counter_values
from leveret.broker.policies import policy_effects
from leveret.broker.publishing.plugin_exchanges import KEYS_OF_QUEUE
from leveret.exchange import Exchange
from leveret.model.definitions import QueueDefinition
from leveret.model.store import StoreError
from leveret.queues.classic.classic_queue import ClassicQueue, Journal, QueueCallbacks
from leveret.queues.port import Queue, Target
from leveret.queues.spec import QueueSpec

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

log = logging.getLogger("leveret.broker")

HEADS_AT_ONCE = 500

TRANSIENT_WINDOWS = 8
"""A queue that is not durable keeps this many windows in memory. Its messages are on no disk, and
writing them while consumers lag for a moment made a fanout to ten queues four times slower."""


class TopologyHandler:
    """The listener of all virtual hosts of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._durable_queues: dict[int, ClassicQueue] = {}

    # Queues ------------------------------------------------------------------------------------

    def make_queue(self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition) -> Queue:
        if spec.kind == "stream":
            return self._broker.log_manager.make(vhost, spec, definition)
        return self.make_classic_queue(vhost, spec, definition)

    def make_classic_queue(
        self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition
    ) -> ClassicQueue:
        broker, settings = self._broker, self._broker.settings
        journal, window = None, settings.queue_window * TRANSIENT_WINDOWS
        if definition.durable:
            window = settings.queue_window
            keep = policy_effects.KEEP[settings.history]
            journal = Journal(broker.store, definition, broker.commit_waiters, keep)
        queue = ClassicQueue(
            spec,
            definition.id,
            self._callbacks(vhost),
            journal,
            window,
            settings.queue_window_bytes,
        )
        if journal is not None:
            self._durable_queues[definition.id] = queue
        if queue.options.deduplicates:
            queue.dedup = broker.plugin_exchanges.make_deduplication(
                vhost, KEYS_OF_QUEUE + spec.name, spec.arguments, definition.durable
            )
        return queue

    def _callbacks(self, vhost: VirtualHost) -> QueueCallbacks:
        broker = self._broker
        return QueueCallbacks(
            broker.scheduler.mark_ready,
            broker.timers.wake_at,
            lambda queue, *deaths: broker.dead_letters.republish(vhost, queue, *deaths),
            lambda queue: self._delete_unused(vhost, queue),
            broker.clock.wall_ms,
            broker.clock_shift.offset_ms,
            broker.store.open_spill if broker.store.can_spill else None,
        )

    def _delete_unused(self, vhost: VirtualHost, queue: Queue) -> None:
        """The queue has been unused for longer than its `x-expires`."""
        vhost.remove_queue(queue)
        self._broker.scheduler.schedule()

    async def read_heads(self) -> None:
        """After a start, read the message at the head of each queue, many at a time.

        The other messages are read when somebody consumes them.
        """
        queues = [queue for queue in self.durable_queues() if queue.backlog and not queue.ready]
        for start in range(0, len(queues), HEADS_AT_ONCE):
            part = [queue for queue in queues[start : start + HEADS_AT_ONCE] if queue.backlog]
            try:
                heads = await self._broker.store.load([queue.backlog.first_id for queue in part])
            except StoreError as error:
                log.warning("cannot read the heads of queues: %s", error)
                return
            for queue, head in zip(part, heads, strict=True):
                queue.restore_first(head)

    def durable_queues(self) -> list[ClassicQueue]:
        return list(self._durable_queues.values())

    def write_snapshots(self, queue_ids: Iterable[int]) -> None:
        """The journals of these queues have grown enough for a new snapshot."""
        delay_queues = self._broker.plugin_exchanges.delay_queues
        for queue_id in queue_ids:
            queue = self._durable_queues.get(queue_id) or delay_queues.maybe_by_id(queue_id)
            if queue is not None and not queue.is_closed:
                queue.snapshot()

    # Changes in a virtual host -----------------------------------------------------------------

    def make_plugin_target(self, vhost: VirtualHost, exchange: Exchange, keys: list[str]) -> Target:
        return self._broker.plugin_exchanges.make_target(vhost, exchange, keys)

    def on_created(self, vhost: VirtualHost, created: Exchange | Queue) -> None:
        policy_effects.apply_policy(self._broker, vhost, created)
        firehose.trace_if_enabled(self._broker, vhost, created)
        self._broker.events.topology(vhost, created, "created")

    def on_queue_deleted(self, vhost: VirtualHost, queue: Queue) -> None:
        broker = self._broker
        self._durable_queues.pop(queue.id, None)
        broker.timers.cancel(queue)
        broker.log_manager.on_queue_deleted(vhost, queue)
        broker.events.topology(vhost, queue, "deleted")
        values = counter_values(queue.counters)
        add_values(broker.counters.deleted_queues, values)
        add_values(vhost.counters.deleted_queues, values)

    def on_exchange_deleted(self, vhost: VirtualHost, exchange: Exchange) -> None:
        self._broker.plugin_exchanges.on_exchange_deleted(vhost, exchange)
        if not exchange.spec.internal:
            vhost.counters.published += exchange.published_in
        self._broker.events.topology(vhost, exchange, "deleted")

    def on_bound(self, vhost: VirtualHost, exchange: Exchange, binding: Binding) -> None:
        self._broker.plugin_exchanges.on_bound(vhost, exchange, binding)
        self._broker.events.binding(vhost, binding, "created")

    def on_unbound(self, vhost: VirtualHost, binding: Binding) -> None:
        self._broker.events.binding(vhost, binding, "deleted")
