"""Dead letters: a message that died in a queue goes on to the queue's dead-letter exchange.

The new message joins the same batch as the event that took the old one out of its queue, so after a
crash it is in exactly one of the two; a full disk loses neither. Where a target queue turns
newcomers away by its limits the message is refused: it stays at its source, is tried again, and an
alarm says so. `x-death` is believed only in messages the broker itself made (their origin is 0): a
client's own `x-death` is a header like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from exchange import TooManySteps
from leveret.broker.aftermath import Aftermath
from leveret.broker.doorway import Doorway, doors, ends
from leveret.broker.epitaphs import Death, Epitaphs, dead_message, deaths_of, engraved
from leveret.broker.judging import open_copies
from leveret.model.errors import BrokerError
from leveret.model.message import FRAME_OVERHEAD, HEADER_FIXED, Headers, Message
from leveret.model.store import Indispensable
from queues import ClassicQueue, HeldQueue, Target
from queues.limits import refuses
from queues.options import Overflow
from queues.port import DeathReason

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import Plan, VirtualHost

STUCK_ALARM = "dead-letters"
MOST_COPIES = 100_000
"""That may come of one message by dying again and again without being rejected."""


class DeadLetters:
    """The way of all dead letters of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._epitaphs = Epitaphs()
        self.aftermath = Aftermath()

    def republish(
        self,
        vhost: VirtualHost,
        queue: HeldQueue,
        messages: Sequence[Message],
        reason: DeathReason,
    ) -> Collection[int]:
        """Take messages that died in `queue` to its dead-letter exchange; the ids it refused."""
        if not isinstance(queue, ClassicQueue):
            return ()
        exchange = queue.options.dead_letter_exchange
        if exchange is None or exchange not in vhost.exchanges:
            return ()
        broker = self._broker
        now_ms = broker.clock.wall_ms()
        refused: set[int] = set()
        moved: list[int] = []
        for message in messages:
            found = self._quickly(vhost, queue, message, reason, now_ms)
            found = found or self._carefully(vhost, queue, message, reason, now_ms)
            if found is None:
                continue
            dead, plan = found
            if any(_is_full(to, dead) for to in ends(plan.queues)):
                refused.add(message.id)
                continue
            dead.time_ms = now_ms
            broker.route(plan, dead)
            self.aftermath.mark(message.id, dead.id, plan.queues)
            moved.append(dead.id)
        self._note(vhost, queue, reason, moved, refused)
        return refused

    def _note(
        self,
        vhost: VirtualHost,
        queue: ClassicQueue,
        reason: DeathReason,
        moved: list[int],
        refused: set[int],
    ) -> None:
        broker = self._broker
        if moved:
            broker.store.save(Indispensable(moved))
        counted = broker.counters.dead_lettered
        counted[reason] = counted.get(reason, 0) + len(moved)
        if refused:
            broker.upkeep.stuck[queue] = vhost

    def _quickly(
        self,
        vhost: VirtualHost,
        queue: ClassicQueue,
        message: Message,
        reason: DeathReason,
        now_ms: int,
    ) -> tuple[Message, Plan] | None:
        """Without a look at its headers, where they have no say."""
        found = self._epitaphs.of(queue, message, reason, now_ms, vhost.version)
        if found is None:
            return None
        epitaph, stay = found
        dead = engraved(message, epitaph, stay)
        if epitaph.plan is None:
            plan = epitaph.plan = self._plan(vhost, dead, dead.headers())
            if plan is not None:
                died = [_this(queue, reason), *epitaph.deaths]
                plan.queues = _without_cycles(plan.queues, died)
        plan = epitaph.plan
        return (dead, plan) if plan is not None and plan.reusable else None

    def _carefully(
        self,
        vhost: VirtualHost,
        queue: ClassicQueue,
        message: Message,
        reason: DeathReason,
        now_ms: int,
    ) -> tuple[Message, Plan] | None:
        headers = message.headers()
        deaths = deaths_of(message, headers)
        most = self._broker.settings.frame_max - FRAME_OVERHEAD - HEADER_FIXED
        dead = dead_message(queue, message, reason, deaths, headers, now_ms, most)
        plan = self._plan(vhost, dead, headers) if dead is not None else None
        if dead is None or plan is None:
            return None
        plan.queues = _without_cycles(plan.queues, [_this(queue, reason), *deaths])
        return dead, plan

    def _plan(self, vhost: VirtualHost, dead: Message, headers: Headers) -> Plan | None:
        extra, rights = open_copies(headers), self._broker.users.revision
        try:
            return vhost.plan(dead.address, extra, headers, rights)
        except TooManySteps:  # it is not lost for its copies
            return vhost.plan(dead.address, [], headers, rights)
        except BrokerError:
            return None


def _is_full(queue: Target, message: Message) -> bool:
    """Whether it would be lost there: an overflow that dead-letters on passes it on instead."""
    return (
        isinstance(queue, ClassicQueue)
        and queue.options.overflow is not Overflow.REJECT_PUBLISH_DLX
        and refuses(queue, message)
    )


def watch_stuck(broker: Broker) -> None:
    """Raise an alarm while dead letters find no room; publishers are not blocked by it."""
    stuck = broker.upkeep.stuck
    for queue in [one for one in stuck if one.closed or not one.burial.stuck]:
        del stuck[queue]
    reason = stuck_reason(broker, broker.vhosts) if stuck else ""
    broker.alarms.set(STUCK_ALARM, reason, blocks=False)


def stuck_reason(broker: Broker, vhosts: Container[str]) -> str:
    """Why, with the names of queues in these vhosts only: not everybody is to know of others."""
    stuck = broker.upkeep.stuck.items()
    where = [f"queue '{one.name}' in vhost '{at.name}'" for one, at in stuck if at.name in vhosts]
    return "dead-letter targets are full" + (f": {', '.join(sorted(where)[:5])}" if where else "")


def _this(queue: ClassicQueue, reason: DeathReason) -> Death:
    return {"queue": queue.name, "reason": reason}


def _without_cycles(queues: list[Target], deaths: list[Death]) -> list[Target]:
    """`deaths` are all it has died, the newest first. None are left where it would multiply."""
    if _multiplies(len(queues), deaths):
        return []
    for door in doors(queues):
        door.behind = _without(door.behind, deaths)
    return _without(queues, deaths)


def _multiplies(width: int, deaths: list[Death]) -> bool:
    """Could there be too many of it, had it gone on to so many queues every time? Queues that all
    lead to all of them would make of one message as many as there are ways through them."""
    unasked = takewhile(lambda death: death["reason"] != DeathReason.REJECTED, deaths)
    return width > 1 and width ** sum(1 for _ in unasked) > MOST_COPIES


def _without(targets: list[Target], deaths: list[Death]) -> list[Target]:
    return [one for one in targets if isinstance(one, Doorway) or not _is_cycle(one.name, deaths)]


def _is_cycle(target: str, deaths: list[Death]) -> bool:
    """Round and round without anybody rejecting it: such a message is dropped."""
    been = [index for index, death in enumerate(deaths) if death["queue"] == target]
    if not been:
        return False
    return all(death["reason"] != DeathReason.REJECTED for death in deaths[: been[0] + 1])
