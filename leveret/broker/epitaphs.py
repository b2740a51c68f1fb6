"""What is written on a dead letter: `x-death`, `x-first-death-*`, `x-last-death-*`.

Most messages say nothing of copies in their headers, and of deaths only what the broker has written
there. For these the same fields are put behind the other headers as they stand: the fields are
encoded once for all messages of one address and the same earlier deaths that die in one queue, for
one reason, in one second. Every other message is taken apart. Event-loop thread only; nothing here
outlives a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from leveret.model.message import Address, Headers, Message
from leveret.model.properties import Scan, change_headers, header_table, with_fields
from leveret.model.tables import encode_table, split_fields
from queues import ClassicQueue
from queues.port import DeathReason

if TYPE_CHECKING:
    from leveret.broker.vhost import Plan

Death = dict[str, Any]
_MOST_KEPT = 4_096
_LONGEST_TABLE = 4_096
_TOLD = (b"CC", b"x-delivery-count")
"""Signs, somewhere in its properties, of a message that has to be taken apart."""
_DEATH = b"-death"
_IDENTITY = ("count", "reason", "queue")
_NEWEST = frozenset(
    {"x-death", *(f"x-last-death-{part}" for part in ("queue", "reason", "exchange"))}
)
"""What another death replaces."""


@dataclass(slots=True)
class Epitaph:
    """For all messages that die alike; `plan` is where they go, once that is known."""

    address: Address
    fields: bytes
    version: int
    deaths: list[Death] = field(default_factory=list)
    plan: Plan | None = None


class Epitaphs:
    def __init__(self) -> None:
        self._second = 0
        self._known: dict[
            tuple[ClassicQueue, DeathReason, str, str, str | None, bytes], Epitaph
        ] = {}

    def of(
        self, queue: ClassicQueue, message: Message, reason: DeathReason, now_ms: int, version: int
    ) -> tuple[Epitaph, bytes] | None:
        """What this message needs, if nothing it says itself has to be looked at; and the encoded
        fields of its headers that stay.

        `version` of the topology: what holds for one may not hold for the next.
        """
        properties = message.properties
        if len(properties) > _LONGEST_TABLE or any(sign in properties for sign in _TOLD):
            return None
        table = header_table(properties, message.scan)
        stay, grave = table[4:], b""
        if _DEATH in properties:
            stay, grave = split_fields(table, _NEWEST)
            if message.origin != 0 or not grave:
                return None
        if now_ms // 1000 != self._second or len(self._known) >= _MOST_KEPT:
            self._second = now_ms // 1000
            self._known.clear()
        address = message.address
        key = (
            queue, reason, address.exchange, address.routing_key, message.scan.expiration, grave
        )  # fmt: skip
        found = self._known.get(key)
        if found is None or found.version != version:
            deaths = deaths_of(message, message.headers()) if grave else []
            if grave and not deaths:
                return None
            death = _death(queue, message, reason, Headers(), now_ms)
            fields = encode_table(_inscription(deaths, death))[4:]
            found = self._known[key] = Epitaph(_target(queue, message), fields, version, deaths)
        return found, stay


def engraved(message: Message, epitaph: Epitaph, stay: bytes) -> Message:
    """The message as it goes on; `stay` are the fields of its headers that do."""
    properties, scan = with_fields(message.properties, message.scan, stay + epitaph.fields)
    return Message.of_parts(epitaph.address, properties, message.body, scan)


def deaths_of(message: Message, headers: Headers) -> list[Death]:
    if message.origin != 0:
        return []
    deaths = headers.get("x-death")
    return [death for death in deaths if isinstance(death, dict)] if deaths else []


def dead_message(
    queue: ClassicQueue,
    message: Message,
    reason: DeathReason,
    deaths: list[Death],
    headers: Headers,
    now_ms: int,
    most_octets: int,
) -> Message | None:
    """The message as it goes on; `headers` become its headers. Nothing is decoded twice.

    None if what it has died of does not fit into its properties any more, however short it is
    put: it would go round for ever. One that dies for the first time goes on without a word.
    """
    own_key = queue.options.dead_letter_key
    removed = {"CC", "BCC"} if own_key is not None else {"BCC"}
    if queue.options.counts_returns:
        removed.add("x-delivery-count")  # how often it came back to a queue that it has left
    death = _death(queue, message, reason, headers, now_ms)
    for added in _shorter_and_shorter(deaths, death):
        changed = change_headers(message.properties, message.scan, frozenset(removed), added)
        if len(changed[0]) <= most_octets:
            return _changed(queue, message, headers, removed, added, changed)
    if message.origin == 0:
        return None
    changed = change_headers(message.properties, message.scan, frozenset(removed), {})
    return _changed(queue, message, headers, removed, {}, changed)


def _changed(
    queue: ClassicQueue,
    message: Message,
    headers: Headers,
    removed: set[str],
    added: dict[str, Any],
    changed: tuple[bytes, Scan],
) -> Message:
    properties, known = changed
    headers.properties = properties
    for name in removed:
        headers.pop(name, None)
    headers.update(added)
    return Message.of_parts(_target(queue, message), properties, message.body, known)


def _target(queue: ClassicQueue, message: Message) -> Address:
    options = queue.options
    key = options.dead_letter_key
    return Address.of(
        options.dead_letter_exchange or "", key if key is not None else message.routing_key
    )


def _inscription(deaths: list[Death], death: Death) -> dict[str, Any]:
    added = {"x-death": _with_death(deaths, death), **_marks("x-last-death", death)}
    return added if deaths else added | _marks("x-first-death", death)


def _shorter_and_shorter(deaths: list[Death], death: Death) -> Iterator[dict[str, Any]]:
    """All of it; without the keys of copies; only where and why."""
    yield _inscription(deaths, death)
    for kept in (("time", "exchange", "routing-keys", "original-expiration"), ()):
        yield _inscription([_short(one, kept) for one in deaths], _short(death, kept))


def _short(death: Death, kept: tuple[str, ...]) -> Death:
    short = {key: value for key, value in death.items() if key in (*_IDENTITY, *kept)}
    if "routing-keys" in short:
        short["routing-keys"] = short["routing-keys"][:1]
    return short


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
    return {
        f"{prefix}-{part}": death[part] for part in ("queue", "reason", "exchange") if part in death
    }


def _with_death(deaths: list[Death], death: Death) -> list[Death]:
    """Newest first, one per queue and reason, counting on."""
    same = [d for d in deaths if (d["queue"], d["reason"]) == (death["queue"], death["reason"])]
    others = [d for d in deaths if d not in same]
    if not same:
        return [death, *deaths]
    return [{**same[0], "count": int(same[0]["count"]) + 1}, *others]
