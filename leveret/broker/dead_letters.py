"""Dead letters: a message that died in a queue goes on to the queue's dead-letter exchange.

The new message joins the same batch as the event that took the old one out of its queue, so after a
crash it is in exactly one of the two; a full disk loses neither. Where a target queue turns
newcomers away by its limits the message is refused: it stays at its source, is tried again, and an
alarm says so. `x-death` is believed only in messages the broker itself made (their origin is 0): a
client's own `x-death` is a header like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from leveret.broker.doorway import Doorway
from leveret.model.errors import BrokerError
from leveret.model.message import Address, Headers, Message
from leveret.model.properties import edit_headers, replace
from leveret.model.store import Indispensable
from queues import ClassicQueue, HeldQueue
from queues.limits import refuses
from queues.options import Overflow
from queues.port import DeathReason

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import Plan, VirtualHost

Death = dict[str, Any]


def republish(
    broker: Broker,
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
    now_ms = broker.clock.wall_ms()
    refused: set[int] = set()
    moved: list[int] = []
    for message in messages:
        headers = message.headers()
        deaths = _deaths(message, headers)
        dead = _dead_message(queue, message, reason, deaths, headers, now_ms)
        plan = _plan(broker, vhost, dead, headers)
        if plan is None:
            continue
        plan.queues = _without_cycles(plan.queues, deaths, reason)
        if any(_is_full(to, dead) for to in plan.queues):
            refused.add(message.id)
            continue
        dead.time_ms = now_ms
        broker.route(plan, dead)
        moved.append(dead.id)
    if moved:
        broker.store.save(Indispensable(moved))
    counted = broker.counters.dead_lettered
    counted[reason] = counted.get(reason, 0) + len(moved)
    if refused:
        broker.upkeep.stuck[queue] = vhost
    return refused


def _is_full(queue: HeldQueue, message: Message) -> bool:
    """Whether it would be lost there: an overflow that dead-letters on passes it on instead."""
    if isinstance(queue, Doorway):
        return any(_is_full(behind, message) for behind in queue.behind)
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
    where = [f"queue '{one.name}' in vhost '{at.name}'" for one, at in stuck.items()]
    reason = f"dead-letter targets are full: {', '.join(sorted(where)[:5])}" if where else ""
    broker.alarms.set("dead-letters", reason, blocks=False)


def _deaths(message: Message, headers: Headers) -> list[Death]:
    if message.origin != 0:
        return []
    deaths = headers.get("x-death")
    return [death for death in deaths if isinstance(death, dict)] if deaths else []


def _plan(broker: Broker, vhost: VirtualHost, dead: Message, headers: Headers) -> Plan | None:
    copies = headers.get("CC")
    extra = [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []
    try:
        return vhost.plan(dead.address, extra, headers, broker.users.revision)
    except BrokerError:
        return None


def _dead_message(
    queue: ClassicQueue,
    message: Message,
    reason: DeathReason,
    deaths: list[Death],
    headers: Headers,
    now_ms: int,
) -> Message:
    """The message as it goes on; `headers` become its headers. Nothing is decoded twice."""
    own_key = queue.options.dead_letter_key
    death = _death(queue, message, reason, headers, now_ms)
    added = {"x-death": _with_death(deaths, death), **_marks("x-last-death", death)}
    if not deaths:
        added |= _marks("x-first-death", death)
    removed = frozenset({"CC", "BCC"} if own_key is not None else {"BCC"})
    properties = message.properties
    if message.scan.expiration is not None:
        properties = replace(properties, "expiration", None)
    headers.properties = properties = edit_headers(properties, removed, added)
    for name in removed:
        headers.pop(name, None)
    headers.update(added)
    target = Address.of(
        queue.options.dead_letter_exchange or "",
        own_key if own_key is not None else message.routing_key,
    )
    return Message.build(target, properties, message.body)


def _death(
    queue: ClassicQueue, message: Message, reason: DeathReason, headers: Headers, now_ms: int
) -> Death:
    copies = headers.get("CC")
    death: Death = {
        "count": 1,
        "reason": str(reason),
        "queue": queue.name,
        "time": datetime.fromtimestamp(now_ms // 1000, UTC),
        "exchange": message.exchange,
        "routing-keys": [message.routing_key, *(copies if isinstance(copies, list) else [])],
    }
    if message.scan.expiration is not None:
        death["original-expiration"] = message.scan.expiration
    return death


def _marks(prefix: str, death: Death) -> dict[str, str]:
    return {f"{prefix}-{part}": death[part] for part in ("queue", "reason", "exchange")}


def _with_death(deaths: list[Death], death: Death) -> list[Death]:
    """Newest first, one per queue and reason, counting on."""
    same = [d for d in deaths if (d["queue"], d["reason"]) == (death["queue"], death["reason"])]
    others = [d for d in deaths if d not in same]
    if not same:
        return [death, *deaths]
    return [{**same[0], "count": int(same[0]["count"]) + 1}, *others]


def _without_cycles(
    queues: list[HeldQueue], deaths: list[Death], reason: DeathReason
) -> list[HeldQueue]:
    kept: list[HeldQueue] = []
    for queue in queues:
        if isinstance(queue, Doorway):
            queue.behind = _without_cycles(queue.behind, deaths, reason)
            kept.append(queue)
        elif not _is_cycle(queue.name, deaths, reason):
            kept.append(queue)
    return kept


def _is_cycle(target: str, deaths: list[Death], reason: DeathReason) -> bool:
    """Round and round without anybody rejecting it: such a message is dropped."""
    if reason is DeathReason.REJECTED:
        return False
    been = [index for index, death in enumerate(deaths) if death["queue"] == target]
    if not been:
        return False
    return all(death["reason"] != DeathReason.REJECTED for death in deaths[: been[0] + 1])
