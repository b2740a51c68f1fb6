"""Records in the history which message a dead letter, or a delayed message that was due, copies.

Event-loop thread. The record joins the batch of the copy, so both are on disk or none.
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.model.history import EventKind
from leveret.model.store import Store

_MAX_DISTANCE = (1 << 32) - 1


def record_copies(store: Store, queue_id: int, pairs: Iterable[tuple[int, int]]) -> None:
    """`pairs` are the ids of a copy and of its original, which was in this queue.

    What is stored is their distance. Four billion messages later, a copy has no parent.
    """
    near = [(copy, copy - original) for copy, original in pairs if copy - original <= _MAX_DISTANCE]
    copies, distances = [copy for copy, _ in near], [distance for _, distance in near]
    store.record_many(EventKind.COPIED, queue_id, copies, sizes=distances)
