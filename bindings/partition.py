"""The matcher of a partitioned log: every message goes to exactly one partition.

A header `x-partition` names it. Else the routing key decides: the binding of that very key where
partitions have names of their own, otherwise murmur3, so that equal keys stay together. Without a
key partitions take turns. Partitions are ordered by their binding argument
`x-stream-partition-order`. An explicit partition that does not exist interests nobody.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from bindings.binding import Binding, Destination
from leveret.model.partitioning import Partitioner
from leveret.model.tables import Table

ORDER_ARGUMENT = "x-stream-partition-order"
PARTITION_HEADER = "x-partition"


class PartitionMatcher:
    depends_on_key_alone = False
    ignores_key = False

    def __init__(self) -> None:
        self._bindings: list[Binding] = []
        self._named: dict[str, Binding] = {}
        self._partitioner: Partitioner | None = None

    def add(self, binding: Binding) -> None:
        insort(self._bindings, binding, key=_order)
        self._changed()

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)
        self._changed()

    def _changed(self) -> None:
        count = len(self._bindings)
        self._partitioner = Partitioner(count) if count else None
        self._named = {b.routing_key: b for b in self._bindings if not b.routing_key.isdecimal()}

    def is_settled_by(self, routing_key: str, headers: Table) -> bool:
        """Whether equal keys without the header give this answer again."""
        return bool(routing_key) and PARTITION_HEADER not in headers

    def match(self, routing_key: str, headers: Table) -> Iterable[Destination]:
        return [binding.destination for binding in self.explain(routing_key, headers)]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        partitioner = self._partitioner
        if partitioner is None:
            return []
        explicit = headers.get(PARTITION_HEADER)
        if explicit is None:
            if routing_key in self._named:
                return [self._named[routing_key]]
            return [self._bindings[partitioner.choose(routing_key.encode())]]
        if isinstance(explicit, bool) or not isinstance(explicit, int):
            return []
        return self._bindings[explicit : explicit + 1] if explicit >= 0 else []


def _order(binding: Binding) -> tuple[int, str]:
    order = binding.arguments.get(ORDER_ARGUMENT)
    return (order if isinstance(order, int) else 1 << 62, binding.routing_key)
