"""What happens to messages at exchanges that hold them up: deduplicated, remembered, delayed.

In a plan such an exchange stands as a doorway (`doorway.py`) that hands on to the queues behind it.
Delayed messages have a module of their own, `delays.py`. What `x-recent-history` remembers is in
memory only, per exchange not more than a queue keeps there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bindings import Binding, DestinationKind
from exchange import DEDUPLICATING, DELAYED, RECENT_HISTORY, Exchange, route
from exchange.stations import HISTORY_LENGTH
from leveret.broker.delays import Delays
from leveret.broker.doorway import Doorway
from leveret.broker.parameters import KEYS
from leveret.model.history import Keep
from leveret.model.message import Message
from leveret.model.store import ParameterDefinition
from leveret.model.tables import Table
from queues import Enqueued, Target
from queues.dedup import Deduplication, KeyKeeper

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

DEFAULT_HISTORY = 20
KEYS_OF_QUEUE, KEYS_OF_EXCHANGE = f"{KEYS}queue ", f"{KEYS}exchange "


class _Recent:
    """The last messages of an exchange, within a number and a size; of one only within a number."""

    def __init__(self, length: int, most_octets: int) -> None:
        self._length = length
        self._most_octets = most_octets
        self._held: deque[Message] = deque()
        self.octets = 0

    def __iter__(self) -> Iterator[Message]:
        return iter(self._held)

    def add(self, message: Message) -> None:
        self._held.append(message)
        self.octets += len(message.frames)
        while len(self._held) > self._length or (
            self.octets > self._most_octets and len(self._held) > 1
        ):
            self.octets -= len(self._held.popleft().frames)


@dataclass(slots=True)
class Stations:
    """The stations of all vhosts, by exchange; each is made when a message first gets there."""

    broker: Broker
    delays: Delays
    _deduplications: dict[Exchange, Deduplication]
    _histories: dict[Exchange, _Recent]
    _stored_keys: dict[tuple[str, str], list[tuple[str, str]]]

    @staticmethod
    def of(broker: Broker) -> Stations:
        return Stations(broker, Delays(broker), {}, {}, {})

    def doorway(
        self, vhost: VirtualHost, keys: list[str], headers: Table, passed: tuple[Exchange, ...]
    ) -> Target:
        """Stands in a plan for what lies behind the last of these."""
        exchange = passed[-1]
        if exchange.spec.kind == DELAYED:
            return self._schedule(vhost, exchange, keys)
        behind = vhost.beyond(keys, headers, passed)
        take = self._taker(vhost, exchange)
        doorway = Doorway(exchange, behind, lambda message: take(doorway, message))
        return doorway

    def _schedule(self, vhost: VirtualHost, exchange: Exchange, keys: list[str]) -> Target:
        queue = self.delays.of(vhost, exchange)
        if len(keys) == 1:
            return queue
        return Doorway(exchange, [queue], lambda message: queue.schedule(message, keys))

    def _taker(
        self, vhost: VirtualHost, exchange: Exchange
    ) -> Callable[[Doorway, Message], Enqueued]:
        if exchange.spec.kind == DEDUPLICATING:
            return lambda doorway, message: self._once(vhost, exchange, doorway, message)
        return lambda doorway, message: self._remember(vhost, exchange, doorway, message)

    def _hand_on(self, vhost: VirtualHost, behind: Sequence[Target], message: Message) -> Enqueued:
        taken = Enqueued.TAKEN
        for queue in behind:
            if not vhost.is_there(queue):
                continue  # gone between a transaction's publish and its commit
            answer = queue.enqueue(message)
            if answer is not Enqueued.TAKEN and taken is not Enqueued.REJECTED:
                taken = answer
            self.broker.turn.touch(queue)
        return taken

    # Deduplication -----------------------------------------------------------------------------

    def _once(
        self, vhost: VirtualHost, exchange: Exchange, doorway: Doorway, message: Message
    ) -> Enqueued:
        seen = self._deduplication(vhost, exchange)
        if seen.is_repeated(message):
            return Enqueued.WAITING
        taken = self._hand_on(vhost, doorway.behind, message)
        if taken is not Enqueued.REJECTED:
            seen.remember(message)
            self.broker.turn.schedule()
        return taken

    def _deduplication(self, vhost: VirtualHost, exchange: Exchange) -> Deduplication:
        seen = self._deduplications.get(exchange)
        if seen is None:
            component = KEYS_OF_EXCHANGE + exchange.name
            durable = exchange.spec.durable
            seen = self.deduplication(vhost, component, exchange.spec.arguments, durable)
            self._deduplications[exchange] = seen
        return seen

    def deduplication(
        self, vhost: VirtualHost, component: str, arguments: Mapping[str, Any], durable: bool
    ) -> Deduplication:
        """What a queue or exchange remembers, with what was stored of it."""
        broker = self.broker
        keeper = None
        if durable:
            keeper = KeyKeeper(broker.store, broker.commits.after, vhost.name, component)
        seen = Deduplication(arguments, keeper, broker.clock.wall_ms)
        seen.recover(self._stored_keys.pop((vhost.name, component), ()))
        return seen

    def recover_key(self, definition: ParameterDefinition) -> bool:
        """Take back a stored key; false when the parameter is none."""
        component = definition.component
        if not component.startswith(KEYS):
            return False
        rows = self._stored_keys.setdefault((definition.vhost, component), [])
        rows.append((definition.name, definition.value))
        return True

    # Recent history ----------------------------------------------------------------------------

    def _remember(
        self, vhost: VirtualHost, exchange: Exchange, doorway: Doorway, message: Message
    ) -> Enqueued:
        held = self._histories.get(exchange)
        if held is None:
            length = int(exchange.spec.arguments.get(HISTORY_LENGTH, DEFAULT_HISTORY))
            held = _Recent(length, self.broker.settings.queue_window_bytes)
            self._histories[exchange] = held
        held.add(message)
        return self._hand_on(vhost, doorway.behind, message)

    def bound(self, vhost: VirtualHost, exchange: Exchange, binding: Binding) -> None:
        """A new binding of `x-recent-history`: whoever came late gets what went before."""
        if exchange.spec.kind != RECENT_HISTORY:
            return
        to = binding.destination
        for message in self._histories.get(exchange, ()):
            names: tuple[str, ...] = (to.name,)
            if to.kind is DestinationKind.EXCHANGE:
                key, headers = message.routing_key, message.headers()
                names = route(vhost.exchanges, vhost.exchanges[to.name], [key], headers).queues
            queues = [vhost.queues[name] for name in names if name in vhost.queues]
            again = message.with_properties(message.properties)
            again.id, again.origin = next(self.broker.store.ids), message.origin
            again.time_ms = self.broker.clock.wall_ms()
            again.keep = max((queue.keep for queue in queues), default=Keep.NOTHING)
            self._hand_on(vhost, queues, again)
        self.broker.turn.schedule()

    @property
    def remembered_bytes(self) -> int:
        return sum([one.octets for one in self._histories.values()])

    # Ending ------------------------------------------------------------------------------------

    def gone(self, vhost: VirtualHost, exchange: Exchange) -> None:
        """The exchange is deleted, and with it what waited or was remembered there."""
        self._histories.pop(exchange, None)
        self.delays.gone(exchange)
        if exchange.spec.kind == DEDUPLICATING:
            self._deduplication(vhost, exchange).clear()
            del self._deduplications[exchange]
