"""Pure judgements over a queue: who is too old, what is too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.model.message import Message
from queues.entry import Entry
from queues.options import Overflow, QueueOptions
from queues.port import Upward

if TYPE_CHECKING:
    from queues.classic import ClassicQueue

MOST_AT_ONCE = 1_000
"""So many expire in one go; other work comes in between."""


def deadline(options: QueueOptions, message: Message) -> int:
    """When a message expires by the wall clock: the sooner of its own and the queue's; 0: never."""
    own = message.scan.expiration
    lives = [
        *([options.message_ttl] if options.message_ttl is not None else []),
        *([int(own)] if own is not None else []),
    ]
    return message.time_ms + min(lives) if lives else 0


def is_past(entry: Entry, upward: Upward) -> bool:
    """Whether it is too late to hand this out.

    Never for a lifetime of zero: it is handed out in the turn it came in, or expires after it.
    """
    due = entry.expires_ms
    return bool(due) and due != entry.message.time_ms and due <= upward.now_ms()


def overdue(queue: ClassicQueue, now_ms: int) -> list[Entry]:
    """Taken off the head: whatever has expired there. What stands behind waits for its turn."""
    gone: list[Entry] = []
    ready = queue.ready
    while ready and 0 < ready[0].expires_ms <= now_ms and len(gone) < MOST_AT_ONCE:
        gone.append(ready.popleft())
    queue.ready_bytes -= sum([entry.message.body_size for entry in gone])
    return gone


def refuses(queue: ClassicQueue, message: Message) -> bool:
    """Whether this message would be one too many and the queue turns newcomers away.

    Also where the oldest should make room but are stuck, because their dead-letter target is full.
    """
    options = queue.options
    if not options.has_length_limit:
        return False
    if options.overflow is Overflow.DROP_HEAD and not queue.burial.stuck:
        return False
    too_many = options.max_length is not None and queue.ready_count >= options.max_length
    too_big = (
        options.max_bytes is not None
        and queue.message_bytes + message.body_size > options.max_bytes
    )
    return too_many or too_big


def surplus(queue: ClassicQueue) -> list[Entry]:
    """Taken off the head: what is held beyond the limits, where the oldest go first."""
    options = queue.options
    if options.overflow is not Overflow.DROP_HEAD or not options.has_length_limit:
        return []
    if queue.burial.is_blocked:
        return []
    gone: list[Entry] = []
    while queue.ready and _is_over(queue, options):
        entry = queue.ready.popleft()
        queue.ready_bytes -= entry.message.body_size
        gone.append(entry)
    return gone


def _is_over(queue: ClassicQueue, options: QueueOptions) -> bool:
    return (options.max_length is not None and queue.ready_count > options.max_length) or (
        options.max_bytes is not None and queue.message_bytes > options.max_bytes
    )
