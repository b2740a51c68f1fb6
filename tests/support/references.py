"""Weak references, to learn that an object was freed."""

from __future__ import annotations

import weakref

from leveret.queues.port import Queue


def reference_to(queue: Queue) -> weakref.ref[object]:
    """To a part that only the queue refers to: compiled objects support no weak references."""
    return weakref.ref(getattr(queue, "backlog", queue))
