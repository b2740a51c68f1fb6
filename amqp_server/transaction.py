"""A transaction: publishes and settlements kept back until commit, then joined to one batch.

A commit happens within one loop turn, so all of it is in one batch of the store, and a batch is
there whole or not at all after a crash. A batch that meets a full disk joins the next one with all
of the transaction, and so on: it is answered when it is on disk. Until then messages are in memory
only, all of a broker's transactions within one limit. A disk that has failed does not come back:
clients with transactions are told so at once, since a publisher that is blocked cannot commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.codec import Publish
from leveret.broker import Broker, Plan
from leveret.broker.upkeep import MESSAGE_OVERHEAD
from leveret.model.errors import BrokerError
from leveret.model.message import Message
from leveret.model.store import Indispensable, StoreState
from queues import Outcome

if TYPE_CHECKING:
    from amqp_server.channel import Channel
    from amqp_server.consumer import Unacked

_REFERENCE = 8
"""Octets of the place of a queue in a list."""


class Transaction:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._upkeep = broker.upkeep
        self._octets = 0
        self._publishes: list[tuple[Publish, Plan, Message]] = []
        self._settlements: list[tuple[dict[int, Unacked], Outcome]] = []

    def publish(self, publish: Publish, plan: Plan, message: Message) -> None:
        if self._broker.store.state is StoreState.FAILED:
            raise BrokerError(self._broker.alarms.reason)
        octets = len(message.frames) + MESSAGE_OVERHEAD
        if not plan.reusable:  # a list of its own
            octets += _REFERENCE * len(plan.queues)
        self._upkeep.keep_back(octets)
        self._octets += octets
        self._publishes.append((publish, plan, message))

    def settle(self, chosen: dict[int, Unacked], outcome: Outcome) -> None:
        self._settlements.append((chosen, outcome))

    def held(self) -> dict[int, Unacked]:
        """Deliveries whose settlement waits for the commit."""
        held: dict[int, Unacked] = {}
        for chosen, _ in self._settlements:
            held.update(chosen)
        return held

    def commit(self, channel: Channel) -> None:
        publishes = self.take_publishes()
        settlements, self._settlements = self._settlements, []
        for publish, plan, message in publishes:
            if plan.version != channel.vhost.version:
                plan = channel.vhost.still_there(plan)
            channel.route(publish.mandatory, plan, message)
        if publishes:
            ids = [message.id for _, _, message in publishes]
            channel.broker.store.save(Indispensable(ids))
        for chosen, outcome in settlements:
            channel.settle_all(chosen, outcome)

    def take_publishes(self) -> list[tuple[Publish, Plan, Message]]:
        self._upkeep.let_go(self._octets)
        publishes, self._publishes, self._octets = self._publishes, [], 0
        return publishes

    def rollback(self, channel: Channel) -> None:
        """Forget publishes and settlements: the deliveries are unacked again, in order."""
        self.take_publishes()
        restored = {**self.held(), **channel.unacked}
        channel.unacked = dict(sorted(restored.items()))
        channel.settled_to = min(channel.unacked, default=channel.last_tag + 1) - 1
        self._settlements.clear()
