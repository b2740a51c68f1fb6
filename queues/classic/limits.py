"""Expiry and length limits. Pure functions: they count, and the queue removes entries."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from leveret.model.message import Message
from leveret.queues.entry import Entry
from leveret.queues.options import QueueOptions

MAX_EXPIRED_AT_ONCE = 1_000
"""More expired entries wait for the next tick, so that other work is done in between."""


def expiry_of(options: QueueOptions, message: Message) -> int:
    """When a message expires: the sooner of its own expiration and the queue's TTL; 0 for never."""
    own = message.scan.expiration
    ttls = [
        *([options.message_ttl] if options.message_ttl is not None else []),
        *([int(own)] if own is not None else []),
    ]
    return message.time_ms + min(ttls) if ttls else 0


def is_too_late(entry: Entry, now_ms: int) -> bool:
    """Whether an entry must not be delivered any more.

    A message with a TTL of 0 is delivered in the tick in which it was published, or expires at the
    end of it; it is too late when it comes back.
    """
    expires_ms = entry.expires_ms
    if not expires_ms or expires_ms > now_ms:
        return False
    return entry.redelivered or expires_ms != entry.message.time_ms


def expired_count(ready: Iterable[Entry], now_ms: int) -> int:
    """How many entries at the head have expired; entries behind a live one have to wait."""
    count = 0
    for entry in islice(ready, MAX_EXPIRED_AT_ONCE):
        if not 0 < entry.expires_ms <= now_ms:
            break
        count += 1
    return count


def is_full(options: QueueOptions, count: int, size: int, message: Message) -> bool:
    """Whether this message would exceed the limits of a queue with `count` messages."""
    return (options.max_length is not None and count >= options.max_length) or (
        options.max_bytes is not None and size + message.body_size > options.max_bytes
    )


def surplus_count(options: QueueOptions, ready: Iterable[Entry], count: int, size: int) -> int:
    """How many entries at the head have to go for the queue to respect its limits.

    `count` and `size` are those of all ready messages, including the ones on disk.
    """
    max_length, max_bytes = options.max_length, options.max_bytes
    surplus = 0
    for entry in ready:
        is_long = max_length is not None and count > max_length
        if not is_long and (max_bytes is None or size <= max_bytes):
            break
        count -= 1
        size -= entry.message.body_size
        surplus += 1
    return surplus
