"""The matcher of a partitioned log: every message goes to exactly one partition.

The header `x-partition` selects it. Otherwise the routing key does: the binding with that key, if
partitions are bound by names of their own, or else the murmur3 hash of the key, so that equal keys
go to one partition. Messages without a key go to the partitions in turn. The binding argument
`x-stream-partition-order` orders the partitions. If `x-partition` selects a partition that does not
exist, no destination matches.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection

from leveret.bindings.binding import Binding, Destination
from leveret.bindings.matchers import ConstantCost
from leveret.model.partitioning import Partitioner
from leveret.model.tables import Table

ORDER_ARGUMENT = "x-stream-partition-order"
PARTITION_HEADER = "x-partition"


class PartitionMatcher(ConstantCost):
    depends_on_key_alone = False
    ignores_key = False

    def __init__(self) -> None:
        self._bindings: list[Binding] = []
        self._by_name: dict[str, Binding] | None = {}
        """None after a change: rebuilt once, however many bindings were added or removed."""
        self._partitioner: Partitioner | None = None

    def add(self, binding: Binding) -> None:
        insort(self._bindings, binding, key=_order)
        self._on_change()

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)
        self._on_change()

    def _on_change(self) -> None:
        count = len(self._bindings)
        self._partitioner = Partitioner(count) if count else None
        self._by_name = None

    def depends_on_key(self, routing_key: str, headers: Table) -> bool:
        """Whether every message with this key, and without the header, has the same partition."""
        return bool(routing_key) and PARTITION_HEADER not in headers

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]:
        return [binding.destination for binding in self.explain(routing_key, headers)]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        partitioner = self._partitioner
        if partitioner is None:
            return []
        explicit = headers.get(PARTITION_HEADER)
        if explicit is None:
            named = self._named_bindings().get(routing_key)
            if named is not None:
                return [named]
            return [self._bindings[partitioner.choose(routing_key.encode())]]
        if isinstance(explicit, bool) or not isinstance(explicit, int):
            return []
        return self._bindings[explicit : explicit + 1] if explicit >= 0 else []

    def _named_bindings(self) -> dict[str, Binding]:
        if self._by_name is None:
            by_key = ((binding.routing_key, binding) for binding in self._bindings)
            self._by_name = {key: binding for key, binding in by_key if not key.isdecimal()}
        return self._by_name


def _order(binding: Binding) -> tuple[int, str]:
    order = binding.arguments.get(ORDER_ARGUMENT)
    return (order if isinstance(order, int) else 1 << 62, binding.routing_key)
