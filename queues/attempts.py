"""How often a message was handed out and came back, against the queue's delivery limit.

An entry counts its returns in memory. What a restart needs is in the journal: every hand-out is an
event there, with its number where it is not the first, and a snapshot says the numbers so far. At
recovery each hand-out of a message that is still there has ended in a return, the last one perhaps
by the crash itself; so a message that keeps bringing down its consumers, or the broker, reaches
the limit all the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.model.properties import edit_headers
from leveret.model.store import ATTEMPTS, Live
from queues.entry import Entry
from queues.options import QueueOptions

if TYPE_CHECKING:
    from queues.classic import ClassicQueue


def worn(options: QueueOptions, entries: Sequence[Entry]) -> list[Entry]:
    """Count the return of these; whoever has come back too often."""
    gone: list[Entry] = []
    for entry in entries:
        entry.redelivered = True
        entry.returns += 1
        if is_worn(options, entry):
            gone.append(entry)
    return gone


def is_worn(options: QueueOptions, entry: Entry) -> bool:
    """Whether it has come back too often; if not, its next receiver is told how often it has."""
    if not entry.returns or not options.counts_returns:
        return False
    if options.delivery_limit is not None and entry.returns > options.delivery_limit:
        return True
    tell_returns(entry)
    return False


def tell_returns(entry: Entry) -> None:
    """Write on a message how often it has come back."""
    message = entry.message
    marked = message.with_properties(
        edit_headers(message.properties, frozenset(), {"x-delivery-count": entry.returns})
    )
    marked.id, marked.time_ms, marked.origin = message.id, message.time_ms, message.origin
    marked.stored, marked.keep = message.stored, message.keep
    entry.message = marked


def attempts_of(queue: ClassicQueue) -> tuple[Live, ...]:
    """For a snapshot: the messages that were handed out, by how often."""
    if not queue.options.counts_returns or queue.paging is None:
        return ()
    times = dict(queue.paging.attempts)
    times |= {entry.id: entry.returns for entry in queue.ready if entry.returns}
    times |= {entry.id: entry.returns + 1 for entry in queue.unacked.values()}
    groups: dict[int, list[int]] = {}
    for message_id in sorted(times):
        groups.setdefault(times[message_id], []).append(message_id)
    return tuple(
        Live(array("Q", ids), array("I", bytes(4 * len(ids))), f"{ATTEMPTS}{number}")
        for number, ids in groups.items()
    )
