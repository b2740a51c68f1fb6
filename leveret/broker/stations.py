"""What happens to messages at exchanges that hold them up: deduplicated, remembered, delayed.

In a plan such an exchange stands as a doorway (`doorway.py`) that hands on to the queues behind it.
Delayed messages have a module of their own, `delays.py`. What `x-recent-history` remembers is in
memory only, per exchange not more than a queue keeps there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bindings import Binding, Destination, DestinationKind
from exchange import DEDUPLICATING, DELAYED, Exchange, Walk, route
from exchange.stations import HISTORY_LENGTH
from leveret.broker.delays import Delays
from leveret.broker.doorway import Doorway
from leveret.broker.parameters import KEYS
from leveret.broker.upkeep import MESSAGE_OVERHEAD
from leveret.model.history import Keep
from leveret.model.message import Message
from leveret.model.store import ParameterDefinition
from queues import Enqueued, HeldQueue, Target
from queues.dedup import Deduplication, KeyKeeper

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

DEFAULT_HISTORY = 20
KEYS_OF_QUEUE, KEYS_OF_EXCHANGE = f"{KEYS}queue ", f"{KEYS}exchange "
MOST_REPLAYED = 2_500
"""Some twenty milliseconds: a new binding gets them all at once, so that newer ones come behind."""
_STEPS_EACH = 8  # of a walk take as long as handing a message to a queue


class _Recent:
    """The last messages of an exchange, within a number and a size; of one only within a number."""

    def __init__(self, length: int, most_octets: int) -> None:
        self._length = length
        self._most_octets = most_octets
        self._held: deque[Message] = deque()
        self.octets = 0

    def newest_first(self) -> Iterator[Message]:
        return reversed(self._held)

    def add(self, message: Message) -> None:
        self._held.append(message)
        self.octets += _weight(message)
        while len(self._held) > self._length or (
            self.octets > self._most_octets and len(self._held) > 1
        ):
            self.octets -= _weight(self._held.popleft())


def _weight(message: Message) -> int:
    return len(message.frames) + MESSAGE_OVERHEAD


_Late = tuple[Message, list[HeldQueue]]


@dataclass(slots=True)
class _Passing:
    """A message at a doorway, which it has reached through the one `before`."""

    doorway: Doorway
    before: _Passing | None = None
    taken: Enqueued = Enqueued.TAKEN
    is_repeated: bool = False

    def hear(self, answer: Enqueued) -> None:
        """What became of it behind: the worst counts."""
        if answer is not Enqueued.TAKEN and self.taken is not Enqueued.REJECTED:
            self.taken = answer


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

    def doorway(self, vhost: VirtualHost, exchange: Exchange, keys: list[str]) -> Target:
        """Stands in a plan for what lies behind this exchange; the plan puts it there."""
        if exchange.spec.kind != DELAYED:
            return Doorway(exchange, [], partial(self._go_through, vhost), keeps=False)
        queue = self.delays.of(vhost, exchange)
        if len(keys) == 1:
            return queue
        return Doorway(exchange, [queue], lambda _, one: queue.schedule(one, keys), keeps=True)

    def _go_through(self, vhost: VirtualHost, first: Doorway, message: Message) -> Enqueued:
        """Through a doorway and those behind it; each then hears what became of the message."""
        passed = [_Passing(first)]
        for passing in passed:  # which grows meanwhile
            if not self._lets_pass(vhost, passing, message):
                continue
            for target in passing.doorway.behind:
                if not vhost.is_there(target):
                    continue  # gone between a transaction's publish and its commit
                if isinstance(target, Doorway) and not target.keeps:
                    passed.append(_Passing(target, passing))
                else:
                    passing.hear(target.enqueue(message))
                    self.broker.turn.touch(target)
        for passing in reversed(passed):
            self._has_passed(vhost, passing, message)
        return passed[0].taken

    def _lets_pass(self, vhost: VirtualHost, passing: _Passing, message: Message) -> bool:
        exchange = passing.doorway.exchange
        if exchange.spec.kind != DEDUPLICATING:
            self._remember(exchange, message)
        elif self._deduplication(vhost, exchange).is_repeated(message):
            passing.is_repeated, passing.taken = True, Enqueued.WAITING
            return False
        return True

    def _has_passed(self, vhost: VirtualHost, passing: _Passing, message: Message) -> None:
        exchange, taken = passing.doorway.exchange, passing.taken
        is_new = exchange.spec.kind == DEDUPLICATING and not passing.is_repeated
        if is_new and taken is not Enqueued.REJECTED:
            self._deduplication(vhost, exchange).remember(message)
            self.broker.turn.schedule()
        if passing.before is not None:
            passing.before.hear(taken)

    # Deduplication -----------------------------------------------------------------------------

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

    def _remember(self, exchange: Exchange, message: Message) -> None:
        held = self._histories.get(exchange)
        if held is None:
            length = int(exchange.spec.arguments.get(HISTORY_LENGTH, DEFAULT_HISTORY))
            held = _Recent(min(length, MOST_REPLAYED), self.broker.settings.queue_window_bytes)
            self._histories[exchange] = held
        held.add(message)

    def bound(self, vhost: VirtualHost, exchange: Exchange, binding: Binding) -> None:
        """A new binding of `x-recent-history`: whoever came late gets what went before."""
        held = self._histories.get(exchange)
        if held is None:
            return
        for message, queues in reversed(self._late(vhost, held, binding.destination)):
            again = message.with_properties(message.properties)
            again.id, again.origin = next(self.broker.store.ids), message.origin
            again.time_ms = self.broker.clock.wall_ms()
            again.keep = max((queue.keep for queue in queues), default=Keep.NOTHING)
            for queue in queues:
                queue.enqueue(again)
                self.broker.turn.touch(queue)
        self.broker.turn.schedule()

    def _late(self, vhost: VirtualHost, held: _Recent, to: Destination) -> list[_Late]:
        """What is to be sent once more and where, the newest first, as much as may be at once."""
        found: list[_Late] = []
        left = MOST_REPLAYED * _STEPS_EACH
        for message in held.newest_first():
            names: tuple[str, ...] = (to.name,)
            walk = Walk()
            if to.kind is DestinationKind.EXCHANGE:
                start, keys = vhost.exchanges[to.name], [message.routing_key]
                names = route(vhost.exchanges, start, keys, message.headers(), walk).queues
            queues = [vhost.queues[name] for name in names if name in vhost.queues]
            left -= walk.steps + _STEPS_EACH * max(1, len(queues))
            if left < 0 and found:
                break
            found.append((message, queues))
        return found

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
