"""A transaction: publishes and settlements are kept until tx.commit, then joined to one batch.

A commit happens within one tick, so all of it is in one batch of the store, and after a crash a
batch is there completely or not at all. The content of a large transaction is stored before, in
several batches: it belongs to no message until the commit. If a batch meets a full disk, the whole
transaction joins the next batch, and is answered when it is on disk. Until the commit, messages are
in memory; all transactions of a broker together have one limit. A commit that acks records which a
consumer group has given to another member fails as a whole. A store that has failed does not
recover: clients with transactions are told at once, because a blocked publisher cannot commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.amqp_server.codec import Publish
from leveret.broker import Broker, Plan
from leveret.broker.publishing.large_bodies import runs_to_stage
from leveret.model.errors import BrokerError, PreconditionFailed
from leveret.model.history import EventKind, Keep
from leveret.model.run import Run
from leveret.model.store import MustNotLose, StagedRuns, StoreState
from leveret.queues.delivery import Delivery
from leveret.queues.entry import Outcome
from leveret.queues.port import MESSAGE_OVERHEAD

if TYPE_CHECKING:
    from leveret.amqp_server.channel import Channel

_Publishes = tuple[Publish, Plan, Run]
"""Consecutive messages with one address, and their plan."""
_REFERENCE_BYTES = 8
"""Memory of one list element."""


class Transaction:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._resource_monitor = broker.resource_monitor
        self._bytes = 0
        self._publishes: list[_Publishes] = []
        self._settlements: list[tuple[list[Delivery], Outcome]] = []

    def publish(self, publish: Publish, plan: Plan, run: Run) -> None:
        """Keep messages with one address; if there are several, none needs validation."""
        if self._broker.store.state is StoreState.FAILED:
            raise BrokerError(self._broker.alarms.reason)
        size = run.content_size + MESSAGE_OVERHEAD * len(run)
        if not plan.reusable:  # the plan has its own list of queues
            size += _REFERENCE_BYTES * len(plan.targets)
        self._resource_monitor.reserve_transaction_bytes(size)
        self._bytes += size
        self._publishes.append((publish, plan, run))

    def settle(self, deliveries: list[Delivery], outcome: Outcome) -> None:
        self._settlements.append((deliveries, outcome))

    def settled_deliveries(self) -> list[Delivery]:
        """Deliveries whose settlement waits for the commit."""
        return [delivery for deliveries, _ in self._settlements for delivery in deliveries]

    def runs_to_stage(self) -> list[Run]:
        """Runs whose content should be stored before `commit`, because it is large."""
        return runs_to_stage(self._broker, ((plan, run) for _, plan, run in self._publishes))

    def commit(self, channel: Channel, staged: Sequence[StagedRuns] = ()) -> None:
        """Publish and settle; raises before anything is done if a settlement would have no effect.

        Consumer groups rebalance at the end of a tick, so no partition moves during a commit.
        `staged`: runs whose content is in the store already.
        """
        self._require_not_fenced(channel)
        publishes = self._take_publishes()
        for runs in staged:
            for run in runs.runs:
                run.mark_stored()
        settlements, self._settlements = self._settlements, []
        for publish, plan, run in publishes:
            if plan.version != channel.vhost.version:
                plan = channel.vhost.drop_deleted_targets(plan)
            channel.enqueue(publish.mandatory, plan, run)
        if publishes:
            ids = [message_id for _, _, run in publishes for message_id in run.ids]
            channel.broker.store.save(MustNotLose(ids))
        for runs in staged:
            self._append_staged(runs)
        for deliveries, outcome in settlements:
            channel.settle_all(deliveries, outcome)

    def _append_staged(self, staged: StagedRuns) -> None:
        """Their messages have ids now."""
        store = self._broker.store
        for run in staged.runs:
            if run.keep is not Keep.NOTHING:
                store.record_many(EventKind.PUBLISHED, 0, run.ids, run.origin)
        store.append(staged)

    def _require_not_fenced(self, channel: Channel) -> None:
        """A record whose partition was taken from its consumer is processed by another one.

        If the transaction were committed without this ack, its outputs would be stored twice. Kafka
        fences producers by the group's generation for the same reason.
        """
        for deliveries, outcome in self._settlements:
            if outcome is Outcome.REQUEUE:
                continue
            for delivery in deliveries:
                for tag, entry in delivery.entries_by_tag():
                    if entry.is_fenced:
                        raise PreconditionFailed(
                            f"delivery tag {tag} of queue '{delivery.queue.name}' in vhost "
                            f"'{channel.vhost.name}' cannot be acknowledged: its partition was "
                            "taken from this consumer (rebalance, reset or cancel); the "
                            "transaction is rolled back"
                        )

    def _take_publishes(self) -> list[_Publishes]:
        self._resource_monitor.release_transaction_bytes(self._bytes)
        publishes, self._publishes, self._bytes = self._publishes, [], 0
        return publishes

    def discard_publishes(self) -> None:
        self._take_publishes()

    def rollback(self) -> list[Delivery]:
        """Discard the publishes; returns the deliveries that are unacknowledged again."""
        self._take_publishes()
        restored = self.settled_deliveries()
        self._settlements.clear()
        return restored
