"""What a queue has delivered and nobody has settled: the deliveries that channels settle, and
messages that a full dead-letter target rejected."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from leveret.queues.delivery import Delivery
from leveret.queues.entry import MAX_UNUSED, Entry, by_id

MAX_AGE_SAMPLE = 10_000
_MISSING = object()


class Unacked:
    """`bytes` are those of the bodies."""

    __slots__ = ("_count", "_deliveries", "bytes")

    def __init__(self) -> None:
        self._deliveries: dict[Delivery, object] = {}
        self._count = 0
        self.bytes = 0

    def __len__(self) -> int:
        """The number of messages."""
        return self._count

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries)

    def __repr__(self) -> str:
        return f"<Unacked {self._count} messages in {len(self._deliveries)} deliveries>"

    def add(self, delivery: Delivery, size: int) -> None:
        part = delivery.part
        if part is not None and len(part.run.frames) > MAX_UNUSED * part.count:
            part.forget_rest_of_run()
        self._deliveries[delivery] = None
        self._count += delivery.count
        self.bytes += size

    def add_split(self, delivery: Delivery) -> None:
        """The messages of this delivery were in another one."""
        self._deliveries[delivery] = None

    def remove(self, delivery: Delivery) -> bool:
        """False if it was removed before."""
        if self._deliveries.pop(delivery, _MISSING) is _MISSING:
            return False
        self._count -= delivery.count
        self.bytes -= delivery.body_bytes
        return True

    def clear(self) -> None:
        self._deliveries.clear()
        self._count = self.bytes = 0

    def entries(self, offset: int, count: int) -> list[Entry]:
        """Some messages in the order of their ids, the first of them at this place."""
        ids = sorted(chain.from_iterable(delivery.ids for delivery in self._deliveries))
        wanted = set(ids[offset : offset + count])
        chosen = [each for each in self._deliveries if not wanted.isdisjoint(each.ids)]
        entries = chain.from_iterable(map(Delivery.entries, chosen))
        return sorted([entry for entry in entries if entry.id in wanted], key=by_id)

    def stored_ids(self) -> list[int]:
        return [number for delivery in self._deliveries for number in delivery.stored_ids]

    def persistent(self) -> Iterator[tuple[int, int]]:
        """Id and body size of each persistent message."""
        return chain.from_iterable(map(Delivery.persistent, self._deliveries))

    def header_sizes(self) -> Iterator[int]:
        return chain.from_iterable(delivery.header_sizes for delivery in self._deliveries)

    def delivery_counts(self) -> dict[int, int]:
        """How often each message was delivered."""
        counts: dict[int, int] = {}
        for delivery in self._deliveries:
            counts |= delivery.delivery_counts()
        return counts

    def oldest_ms(self) -> int | None:
        """Bounded work: only the messages that were delivered first are compared."""
        oldest: int | None = None
        remaining = MAX_AGE_SAMPLE
        for delivery in self._deliveries:
            oldest = delivery.time_ms if oldest is None else min(oldest, delivery.time_ms)
            remaining -= len(delivery)
            if remaining <= 0:
                break
        return oldest
