"""Who gets what: entries taken off the front of a queue, by credit, a slice of octets at a time.

What expires is taken alone, because each is judged by the clock before it goes. Nothing beyond
`limit`, the last message id that may be delivered, is taken.
"""

from __future__ import annotations

from queues.entry import Entry
from queues.port import Consumer
from queues.ready import Ready

SLICE_BYTES = 128 * 1024
OCTETS_EACH = 100
"""A message without a body is no less work for that."""


def share(ready: Ready, credit: int, limit: int) -> list[Entry]:
    """What one consumer with so much credit gets now."""
    entries: list[Entry] = []
    room = SLICE_BYTES
    while credit and ready and room > 0 and ready[0].id <= limit:
        if ready[0].expires_ms and entries:
            break
        entry = ready.popleft()
        room -= entry.message.body_size + OCTETS_EACH
        entries.append(entry)
        credit -= 1
    return entries


def share_out(
    ready: Ready, takers: list[tuple[Consumer, int]], limit: int
) -> tuple[list[list[Entry]], Consumer]:
    """What each of several gets, one after the other in turn; and who was the last to get one."""
    shares: list[list[Entry]] = [[] for _ in takers]
    credits = [credit for _, credit in takers]
    room, turn, idle = SLICE_BYTES, 0, 0
    last = takers[0][0]
    while ready and room > 0 and idle < len(takers) and ready[0].id <= limit:
        if ready[0].expires_ms and any(shares):
            break
        if credits[turn]:
            entry = ready.popleft()
            room -= entry.message.body_size + OCTETS_EACH
            shares[turn].append(entry)
            credits[turn] -= 1
            last, idle = takers[turn][0], 0
        else:
            idle += 1
        turn = (turn + 1) % len(takers)
    return shares, last
