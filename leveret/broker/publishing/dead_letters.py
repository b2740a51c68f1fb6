"""Dead-lettering: republishes messages that died in a queue to its dead-letter exchange.

The new message joins the same batch as the event that removes the old one from its queue, so after
a crash it is in exactly one of the two; a full disk loses neither. If a target queue rejects the
message because of its limits, the message stays in its source queue, is tried again, and an alarm
names the queue. `x-death` headers are trusted only in messages that the broker itself published
(their origin is 0); a client's own `x-death` is a header like any other. Event-loop thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from leveret.broker.publishing.copies import record_copies
from leveret.broker.publishing.plugin_exchanges import (
    PassThroughTarget,
    final_targets,
    pass_through_targets,
)
from leveret.broker.publishing.validation import cc_keys
from leveret.broker.publishing.x_death import (
    Death,
    DeathHeaderCache,
    append_death_headers,
    deaths_of,
    make_dead_letter,
)
from leveret.exchange import TooManySteps
from leveret.model.errors import BrokerError
from leveret.model.history import Keep
from leveret.model.message import FRAME_OVERHEAD, HEADER_FIXED, Headers, Message
from leveret.model.run import Run
from leveret.model.store import MustNotLose
from leveret.queues.classic.classic_queue import ClassicQueue
from leveret.queues.port import DeathReason, Target

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import Plan, VirtualHost

STUCK_ALARM = "dead-letters"
MAX_COPIES = 100_000
"""Copies that repeated dead-lettering without a reject may make of one message."""


class DeadLetters:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._header_cache = DeathHeaderCache()
        self._stuck_queues: dict[ClassicQueue, VirtualHost] = {}
        """Queues with dead letters that their target queues reject."""

    def republish(
        self,
        vhost: VirtualHost,
        queue: ClassicQueue,
        messages: Sequence[Message],
        reason: DeathReason,
    ) -> Collection[int]:
        """Republish messages that died in `queue`; returns the ids of rejected ones."""
        exchange = queue.options.dead_letter_exchange
        if exchange is None or exchange not in vhost.exchanges:
            return ()
        broker = self._broker
        now_ms = broker.clock.wall_ms()
        rejected: set[int] = set()
        republished: list[int] = []
        copies: list[tuple[int, int]] = []
        for message in messages:
            planned = self._plan_from_cache(vhost, queue, message, reason, now_ms)
            planned = planned or self._plan_uncached(vhost, queue, message, reason, now_ms)
            if planned is None:
                continue
            dead, plan = planned
            if any(target.rejects_dead_letter(dead) for target in final_targets(plan.targets)):
                rejected.add(message.id)
                continue
            dead.time_ms = now_ms
            broker.enqueue(plan, Run.of([dead]))
            broker.republished_redelivery.mark(message.id, dead.id, plan.targets)
            republished.append(dead.id)
            if dead.scan.persistent:
                copies.append((dead.id, message.id))
        if republished:
            broker.store.save(MustNotLose(republished))
        if queue.keep is not Keep.NOTHING:
            record_copies(broker.store, queue.id, copies)
        counts = broker.counters.dead_lettered
        counts[reason] = counts.get(reason, 0) + len(republished)
        if rejected:
            self._stuck_queues[queue] = vhost
        return rejected

    # Plans -------------------------------------------------------------------------------------

    def _plan_from_cache(
        self,
        vhost: VirtualHost,
        queue: ClassicQueue,
        message: Message,
        reason: DeathReason,
        now_ms: int,
    ) -> tuple[Message, Plan] | None:
        """The dead letter and its plan without decoding headers, if they do not matter."""
        cached = self._header_cache.maybe_get(queue, message, reason, now_ms, vhost.version)
        if cached is None:
            return None
        death_headers, other_fields = cached
        dead = append_death_headers(message, death_headers, other_fields)
        if death_headers.plan is None:
            plan = death_headers.plan = self._plan(vhost, dead, dead.headers())
            if plan is not None:
                deaths = [_death_in(queue, reason), *death_headers.deaths]
                plan.targets = _without_cycles(plan.targets, deaths)
        plan = death_headers.plan
        return (dead, plan) if plan is not None and plan.reusable else None

    def _plan_uncached(
        self,
        vhost: VirtualHost,
        queue: ClassicQueue,
        message: Message,
        reason: DeathReason,
        now_ms: int,
    ) -> tuple[Message, Plan] | None:
        headers = message.headers()
        deaths = deaths_of(message, headers)
        max_bytes = self._broker.settings.frame_max - FRAME_OVERHEAD - HEADER_FIXED
        dead = make_dead_letter(queue, message, reason, deaths, headers, now_ms, max_bytes)
        plan = self._plan(vhost, dead, headers) if dead is not None else None
        if dead is None or plan is None:
            return None
        plan.targets = _without_cycles(plan.targets, [_death_in(queue, reason), *deaths])
        return dead, plan

    def _plan(self, vhost: VirtualHost, dead: Message, headers: Headers) -> Plan | None:
        extra_keys, revision = cc_keys(headers), self._broker.users.revision
        try:
            return vhost.plan(dead.address, extra_keys, headers, revision)
        except TooManySteps:  # route it without its copies instead of losing it
            return vhost.plan(dead.address, [], headers, revision)
        except BrokerError:
            return None

    # Alarm -------------------------------------------------------------------------------------

    def check_stuck_queues(self) -> None:
        """Raise or clear the alarm for rejected dead letters; it does not block publishers."""
        stuck = self._stuck_queues
        for queue in [queue for queue in stuck if queue.is_closed or not queue.dead_letterer.stuck]:
            del stuck[queue]
        reason = self.stuck_reason(self._broker.vhosts) if stuck else ""
        self._broker.alarms.set(STUCK_ALARM, reason, blocks=False)

    def stuck_reason(self, visible_vhosts: Container[str]) -> str:
        """The alarm's text; it names only queues of vhosts that the user may see."""
        names = [
            f"queue '{queue.name}' in vhost '{vhost.name}'"
            for queue, vhost in self._stuck_queues.items()
            if vhost.name in visible_vhosts
        ]
        reason = "dead-letter targets are full"
        return f"{reason}: {', '.join(sorted(names)[:5])}" if names else reason


# Cycles ------------------------------------------------------------------------------------------


def _death_in(queue: ClassicQueue, reason: DeathReason) -> Death:
    return {"queue": queue.name, "reason": reason}


def _without_cycles(targets: list[Target], deaths: list[Death]) -> list[Target]:
    """Remove targets that would make a cycle. `deaths` are all deaths, the newest first."""
    if _multiplies(len(targets), deaths):
        return []
    for pass_through in pass_through_targets(targets):
        pass_through.targets = _without_cyclic(pass_through.targets, deaths)
    return _without_cyclic(targets, deaths)


def _multiplies(width: int, deaths: list[Death]) -> bool:
    """Whether there could be too many copies, if every death led to `width` queues.

    Queues that all dead-letter to each other make as many copies of a message as there are paths.
    """
    unrejected = takewhile(lambda death: death["reason"] != DeathReason.REJECTED, deaths)
    return width > 1 and width ** sum(1 for _ in unrejected) > MAX_COPIES


def _without_cyclic(targets: list[Target], deaths: list[Death]) -> list[Target]:
    return [
        target
        for target in targets
        if isinstance(target, PassThroughTarget) or not _is_cycle(target.name, deaths)
    ]


def _is_cycle(target: str, deaths: list[Death]) -> bool:
    """It died in this queue before, and no consumer has rejected it since: drop it."""
    visits = [index for index, death in enumerate(deaths) if death["queue"] == target]
    if not visits:
        return False
    return all(death["reason"] != DeathReason.REJECTED for death in deaths[: visits[0] + 1])
