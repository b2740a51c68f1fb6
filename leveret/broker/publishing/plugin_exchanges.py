"""Exchanges that do more than route: deduplicate, remember or delay messages.

In a plan such an exchange stands as a `PassThroughTarget`, which holds the targets behind it. So a
message is handled when it is enqueued (in a transaction: at commit), not when its plan is made.
Pass-through targets may be nested, thousands deep: code that follows them keeps a list instead of
calling itself. Delayed messages have a module of their own, `delayed.py`. The messages that
`x-recent-history` remembers are in memory only, per exchange no more than a queue keeps there.
Event-loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.bindings import Binding, Destination, DestinationKind
from leveret.broker.policies.parameters import KEYS
from leveret.broker.publishing.delayed import DelayQueues
from leveret.exchange import DEDUPLICATING, DELAYED, Exchange, Walk, route
from leveret.exchange.plugin_kinds import HISTORY_LENGTH
from leveret.model.definitions import ParameterDefinition
from leveret.model.history import Keep
from leveret.model.message import Message
from leveret.model.run import Run
from leveret.queues.classic.deduplication import Deduplication, DeduplicationStore
from leveret.queues.port import MESSAGE_OVERHEAD, EnqueueResult, Queue, Target

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

DEFAULT_HISTORY = 20
KEYS_OF_QUEUE, KEYS_OF_EXCHANGE = f"{KEYS}queue ", f"{KEYS}exchange "
MAX_REPLAYED = 2_500
"""Takes about 20 ms: a new binding gets them all at once, so that newer messages follow them."""
_STEPS_PER_MESSAGE = 8
"""Steps of a routing walk that take as long as enqueueing one message."""


# Targets of a plan -------------------------------------------------------------------------------


class PassThroughTarget:
    """Passes a message on to `targets`, or `holds` it in a queue of its own."""

    __slots__ = ("_enqueue", "dispatch_pending", "exchange", "holds", "name", "targets")

    def __init__(
        self,
        exchange: Exchange,
        targets: list[Target],
        enqueue: Callable[[PassThroughTarget, Message], EnqueueResult],
        holds: bool,
    ) -> None:
        self.exchange = exchange
        self.name = exchange.name
        self.dispatch_pending = True  # it never has anything to deliver
        self.targets = targets
        self.holds = holds
        self._enqueue = enqueue

    @property
    def keep(self) -> Keep:
        return max((target.keep for target in final_targets(self.targets)), default=Keep.NOTHING)

    def enqueue(self, run: Run) -> list[EnqueueResult] | None:
        return [self._enqueue(self, message) for message in run.messages]

    def stores_content(self, persistent: bool) -> bool:
        return False

    def rejects_dead_letter(self, message: Message) -> bool:
        return False

    def mark_redelivered(self, message_id: int) -> None:
        return None

    def dispatch(self) -> None:
        return None


def pass_through_targets(targets: Iterable[Target]) -> Iterator[PassThroughTarget]:
    """All pass-through targets, including nested ones."""
    remaining = [target for target in targets if isinstance(target, PassThroughTarget)]
    while remaining:
        target = remaining.pop()
        yield target
        remaining += [inner for inner in target.targets if isinstance(inner, PassThroughTarget)]


def final_targets(targets: Iterable[Target]) -> Iterator[Target]:
    """The queues among the targets and behind pass-through targets."""
    remaining = list(targets)
    while remaining:
        target = remaining.pop()
        if isinstance(target, PassThroughTarget):
            remaining += target.targets
        else:
            yield target


# Recent history ----------------------------------------------------------------------------------


class _RecentMessages:
    """The last messages of an exchange, limited by number and size; at least one is kept."""

    def __init__(self, max_length: int, max_bytes: int) -> None:
        self._max_length = max_length
        self._max_bytes = max_bytes
        self._messages: deque[Message] = deque()
        self.bytes = 0

    def newest_first(self) -> Iterator[Message]:
        return reversed(self._messages)

    def add(self, message: Message) -> None:
        self._messages.append(message)
        self.bytes += _memory_bytes(message)
        while len(self._messages) > self._max_length or (
            self.bytes > self._max_bytes and len(self._messages) > 1
        ):
            self.bytes -= _memory_bytes(self._messages.popleft())


def _memory_bytes(message: Message) -> int:
    return message.content_size + MESSAGE_OVERHEAD


_Replay = tuple[Message, list[Queue]]


# The exchanges of a broker -----------------------------------------------------------------------


@dataclass(slots=True)
class _Visit:
    """A message at a pass-through target, reached through the one of `parent`."""

    target: PassThroughTarget
    parent: _Visit | None = None
    result: EnqueueResult = EnqueueResult.ACCEPTED
    is_duplicate: bool = False

    def add_result(self, result: EnqueueResult) -> None:
        """The worst result of all targets counts."""
        if result is not EnqueueResult.ACCEPTED and self.result is not EnqueueResult.REJECTED:
            self.result = result


class PluginExchanges:
    """State of the plugin exchanges of all vhosts, made when the first message gets there."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.delay_queues = DelayQueues(broker)
        self._deduplications: dict[Exchange, Deduplication] = {}
        self._histories: dict[Exchange, _RecentMessages] = {}
        self._recovered_keys: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def make_target(self, vhost: VirtualHost, exchange: Exchange, keys: list[str]) -> Target:
        """Stands in a plan for this exchange; the plan adds the targets behind it."""
        if exchange.spec.kind != DELAYED:
            return PassThroughTarget(exchange, [], partial(self._enqueue, vhost), holds=False)
        queue = self.delay_queues.get_or_create(vhost, exchange)
        if len(keys) == 1:
            return queue
        return PassThroughTarget(
            exchange, [queue], lambda _, message: queue.schedule(message, keys), holds=True
        )

    def _enqueue(
        self, vhost: VirtualHost, first: PassThroughTarget, message: Message
    ) -> EnqueueResult:
        """Enqueue a message behind a target and those nested in it, then combine the results."""
        visits = [_Visit(first)]
        for visit in visits:  # grows meanwhile
            if not self._admit(vhost, visit, message):
                continue
            for target in visit.target.targets:
                if not vhost.has_target(target):
                    continue  # deleted between a transaction's publish and its commit
                if isinstance(target, PassThroughTarget) and not target.holds:
                    visits.append(_Visit(target, visit))
                else:
                    for result in target.enqueue(Run.of([message])) or ():
                        visit.add_result(result)
                    self._broker.scheduler.mark_ready(target)
        for visit in reversed(visits):
            self._finish(vhost, visit, message)
        return visits[0].result

    def _admit(self, vhost: VirtualHost, visit: _Visit, message: Message) -> bool:
        """Remember the message at its exchange; False if it is a duplicate there."""
        exchange = visit.target.exchange
        if exchange.spec.kind != DEDUPLICATING:
            self._remember(exchange, message)
        elif self._deduplication_of(vhost, exchange).detect_duplicate(message):
            visit.is_duplicate, visit.result = True, EnqueueResult.ACCEPTED_ON_COMMIT
            return False
        return True

    def _finish(self, vhost: VirtualHost, visit: _Visit, message: Message) -> None:
        exchange, result = visit.target.exchange, visit.result
        is_new = exchange.spec.kind == DEDUPLICATING and not visit.is_duplicate
        if is_new and result is not EnqueueResult.REJECTED:
            self._deduplication_of(vhost, exchange).remember(message)
            self._broker.scheduler.schedule()
        if visit.parent is not None:
            visit.parent.add_result(result)

    def on_exchange_deleted(self, vhost: VirtualHost, exchange: Exchange) -> None:
        """Delete the delayed messages, the history and the keys of this exchange."""
        self._histories.pop(exchange, None)
        self.delay_queues.on_exchange_deleted(exchange)
        if exchange.spec.kind == DEDUPLICATING:
            self._deduplication_of(vhost, exchange).clear()
            del self._deduplications[exchange]

    # Deduplication -----------------------------------------------------------------------------

    def _deduplication_of(self, vhost: VirtualHost, exchange: Exchange) -> Deduplication:
        deduplication = self._deduplications.get(exchange)
        if deduplication is None:
            spec, component = exchange.spec, KEYS_OF_EXCHANGE + exchange.name
            deduplication = self.make_deduplication(vhost, component, spec.arguments, spec.durable)
            self._deduplications[exchange] = deduplication
        return deduplication

    def make_deduplication(
        self, vhost: VirtualHost, component: str, arguments: Mapping[str, Any], durable: bool
    ) -> Deduplication:
        """The keys a queue or exchange has seen, including recovered ones."""
        broker, store = self._broker, None
        if durable:
            store = DeduplicationStore(broker.store, broker.commit_waiters, vhost.name, component)
        deduplication = Deduplication(arguments, store, broker.clock.wall_ms)
        deduplication.recover(self._recovered_keys.pop((vhost.name, component), ()))
        return deduplication

    def recover_key(self, definition: ParameterDefinition) -> bool:
        """Recover a stored deduplication key; False if the parameter is something else."""
        component = definition.component
        if not component.startswith(KEYS):
            return False
        rows = self._recovered_keys.setdefault((definition.vhost, component), [])
        rows.append((definition.name, definition.value))
        return True

    # Recent history ----------------------------------------------------------------------------

    def _remember(self, exchange: Exchange, message: Message) -> None:
        history = self._histories.get(exchange)
        if history is None:
            length = int(exchange.spec.arguments.get(HISTORY_LENGTH, DEFAULT_HISTORY))
            max_bytes = self._broker.settings.queue_window_bytes
            history = _RecentMessages(min(length, MAX_REPLAYED), max_bytes)
            self._histories[exchange] = history
        history.add(message)

    def on_bound(self, vhost: VirtualHost, exchange: Exchange, binding: Binding) -> None:
        """Replay the recent history to a new binding of an `x-recent-history` exchange."""
        history = self._histories.get(exchange)
        if history is None:
            return
        for message, queues in reversed(self._replays(vhost, history, binding.destination)):
            copy = message.with_properties(message.properties)
            copy.origin = message.origin
            self._broker.enqueue_internal(queues, copy)
        self._broker.scheduler.schedule()

    def _replays(
        self, vhost: VirtualHost, history: _RecentMessages, destination: Destination
    ) -> list[_Replay]:
        """Which messages to replay to which queues, newest first, within `MAX_REPLAYED`."""
        replays: list[_Replay] = []
        steps_left = MAX_REPLAYED * _STEPS_PER_MESSAGE
        for message in history.newest_first():
            names: tuple[str, ...] = (destination.name,)
            walk = Walk()
            if destination.kind is DestinationKind.EXCHANGE:
                start, keys = vhost.exchanges[destination.name], [message.routing_key]
                names = route(vhost.exchanges, start, keys, message.headers(), walk).queues
            queues = [vhost.queues[name] for name in names if name in vhost.queues]
            steps_left -= walk.steps + _STEPS_PER_MESSAGE * max(1, len(queues))
            if steps_left < 0 and replays:
                break
            replays.append((message, queues))
        return replays

    @property
    def remembered_bytes(self) -> int:
        return sum([history.bytes for history in self._histories.values()])
