"""The headers of a dead letter: `x_death_headers` writes `x-death`, `x-first-death-*` and so on.

They are written in one of two ways. Most messages have no CC header, and only death headers that
the broker wrote: `append_death_headers` appends fields that `DeathHeaderCache` encodes once for all
messages with the same address and the same earlier deaths that die in one queue, for one reason, in
one second. `make_dead_letter` decodes and encodes the headers of every other message. Event-loop
thread only; nothing here outlives the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from leveret.model.message import (
    Address,
    Headers,
    Message,
    Scan,
    change_headers,
    header_table,
    with_fields,
)
from leveret.model.tables import encode_table, split_fields
from leveret.queues.classic.classic_queue import ClassicQueue
from leveret.queues.port import DeathReason

if TYPE_CHECKING:
    from leveret.broker.vhost import Plan

Death = dict[str, Any]
_MAX_CACHED = 4_096
_MAX_PROPERTIES = 4_096
_UNCACHEABLE = (b"CC", b"x-delivery-count")
"""Bytes that, anywhere in the properties, require decoding the headers."""
_DEATH = b"-death"
_IDENTITY = ("count", "reason", "queue")
_LAST_DEATH = frozenset(
    {"x-death", *(f"x-last-death-{part}" for part in ("queue", "reason", "exchange"))}
)
"""Headers that the next death replaces."""


@dataclass(slots=True)
class DeathHeaders:
    """The encoded headers of all messages that die alike, and their plan once it is known."""

    address: Address
    fields: bytes
    version: int
    deaths: list[Death] = field(default_factory=list)
    plan: Plan | None = None


class DeathHeaderCache:
    def __init__(self) -> None:
        self._second = 0
        self._cached: dict[
            tuple[ClassicQueue, DeathReason, str, str, str | None, bytes], DeathHeaders
        ] = {}

    def maybe_get(
        self, queue: ClassicQueue, message: Message, reason: DeathReason, now_ms: int, version: int
    ) -> tuple[DeathHeaders, bytes] | None:
        """The death headers of this message and its other header fields, encoded.

        None if its headers must be decoded. `version` is that of the topology: the plan of an
        older one may be wrong.
        """
        properties = message.properties
        if len(properties) > _MAX_PROPERTIES or any(mark in properties for mark in _UNCACHEABLE):
            return None
        table = header_table(properties, message.scan)
        other_fields, last_death = table[4:], b""
        if _DEATH in properties:
            other_fields, last_death = split_fields(table, _LAST_DEATH)
            if message.origin != 0 or not last_death:
                return None
        if now_ms // 1000 != self._second or len(self._cached) >= _MAX_CACHED:
            self._second = now_ms // 1000
            self._cached.clear()
        address = message.address
        key = (
            queue, reason, address.exchange, address.routing_key, message.scan.expiration,
            last_death,
        )  # fmt: skip
        cached = self._cached.get(key)
        if cached is None or cached.version != version:
            deaths = deaths_of(message, message.headers()) if last_death else []
            if last_death and not deaths:
                return None
            death = _make_death(queue, message, reason, Headers(), now_ms)
            fields = encode_table(x_death_headers(deaths, death))[4:]
            cached = DeathHeaders(_dead_letter_address(queue, message), fields, version, deaths)
            self._cached[key] = cached
        return cached, other_fields


def append_death_headers(
    message: Message, death_headers: DeathHeaders, other_fields: bytes
) -> Message:
    """The dead letter; `other_fields` are the encoded header fields that stay."""
    fields = other_fields + death_headers.fields
    properties, scan = with_fields(message.properties, message.scan, fields)
    return Message.of_parts(death_headers.address, properties, message.body_in_pieces(), scan)


def deaths_of(message: Message, headers: Headers) -> list[Death]:
    """Earlier deaths, newest first; those in a client's own header do not count."""
    if message.origin != 0:
        return []
    deaths = headers.get("x-death")
    return [death for death in deaths if isinstance(death, dict)] if deaths else []


def make_dead_letter(
    queue: ClassicQueue,
    message: Message,
    reason: DeathReason,
    deaths: list[Death],
    headers: Headers,
    now_ms: int,
    max_bytes: int,
) -> Message | None:
    """The dead letter, with properties of at most `max_bytes`; `headers` become its headers.

    None if the deaths do not fit even in their shortest form: the message could go round in a
    cycle for ever. A message that dies for the first time is republished without death headers
    instead.
    """
    has_own_key = queue.options.dead_letter_routing_key is not None
    removed = {"CC", "BCC"} if has_own_key else {"BCC"}
    if queue.options.counts_deliveries:
        removed.add("x-delivery-count")  # it counts deliveries of the queue the message has left
    death = _make_death(queue, message, reason, headers, now_ms)
    for added in _ever_shorter_headers(deaths, death):
        changed = change_headers(message.properties, message.scan, frozenset(removed), added)
        if len(changed[0]) <= max_bytes:
            return _change_properties(queue, message, headers, removed, added, changed)
    if message.origin == 0:
        return None
    changed = change_headers(message.properties, message.scan, frozenset(removed), {})
    return _change_properties(queue, message, headers, removed, {}, changed)


def _change_properties(
    queue: ClassicQueue,
    message: Message,
    headers: Headers,
    removed: set[str],
    added: dict[str, Any],
    changed: tuple[bytes, Scan],
) -> Message:
    """Applies the changes to the decoded headers, too, so that nothing is decoded twice."""
    properties, scan = changed
    headers.properties = properties
    for name in removed:
        headers.pop(name, None)
    headers.update(added)
    return Message.of_parts(
        _dead_letter_address(queue, message), properties, message.body_in_pieces(), scan
    )


def _dead_letter_address(queue: ClassicQueue, message: Message) -> Address:
    options = queue.options
    key = options.dead_letter_routing_key
    return Address.of(
        options.dead_letter_exchange or "", key if key is not None else message.routing_key
    )


def x_death_headers(deaths: list[Death], death: Death) -> dict[str, Any]:
    added = {"x-death": _with_death(deaths, death), **_summary("x-last-death", death)}
    return added if deaths else added | _summary("x-first-death", death)


def _ever_shorter_headers(deaths: list[Death], death: Death) -> Iterator[dict[str, Any]]:
    """The headers in full; with one routing key per death; with queue, reason and count only."""
    yield x_death_headers(deaths, death)
    for details in (("time", "exchange", "routing-keys", "original-expiration"), ()):
        shortened = [_shortened(earlier, details) for earlier in deaths]
        yield x_death_headers(shortened, _shortened(death, details))


def _shortened(death: Death, details: tuple[str, ...]) -> Death:
    shortened = {key: value for key, value in death.items() if key in (*_IDENTITY, *details)}
    if "routing-keys" in shortened:
        shortened["routing-keys"] = shortened["routing-keys"][:1]
    return shortened


def _make_death(
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


def _summary(prefix: str, death: Death) -> dict[str, str]:
    return {
        f"{prefix}-{part}": death[part] for part in ("queue", "reason", "exchange") if part in death
    }


def _with_death(deaths: list[Death], death: Death) -> list[Death]:
    """Newest first, one entry per queue and reason, with a count."""
    same = [d for d in deaths if (d["queue"], d["reason"]) == (death["queue"], death["reason"])]
    others = [d for d in deaths if d not in same]
    if not same:
        return [death, *deaths]
    return [{**same[0], "count": int(same[0]["count"]) + 1}, *others]
