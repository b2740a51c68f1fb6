"""How long messages have been waiting, and how much consumers hold.

Bounded work: of very many unacked messages only those delivered first are looked at.
"""

from __future__ import annotations

from itertools import islice

from queues import ClassicQueue, HeldQueue

LOOKED_AT = 10_000


def oldest_ready_ms(queue: HeldQueue) -> int | None:
    """When the message at the head was published."""
    if not isinstance(queue, ClassicQueue) or not queue.ready:
        return None
    return queue.ready[0].message.time_ms


def oldest_unacked_ms(queue: HeldQueue) -> int | None:
    """When the oldest message that a consumer holds was published."""
    if not isinstance(queue, ClassicQueue) or not queue.unacked:
        return None
    return min(entry.message.time_ms for entry in islice(queue.unacked.values(), LOOKED_AT))


def unacked_bytes(queue: ClassicQueue) -> int:
    """Octets in unacked bodies; beyond the bound, scaled up from those looked at."""
    held = len(queue.unacked)
    seen = sum(entry.message.body_size for entry in islice(queue.unacked.values(), LOOKED_AT))
    return seen if held <= LOOKED_AT else seen * held // LOOKED_AT
