"""The matcher of a partitioned log: every message goes to exactly one partition.

A header `x-partition` names it. Else the routing key decides: the binding of that very key where
partitions have names of their own, otherwise murmur3, so that equal keys stay together. Without a
key partitions take turns. Partitions are ordered by their binding argument
`x-stream-partition-order`. An explicit partition that does not exist interests nobody.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection

from bindings.binding import Binding, Destination
from bindings.matchers import Quick
from leveret.model.partitioning import Partitioner
from leveret.model.tables import Table

ORDER_ARGUMENT = "x-stream-partition-order"
PARTITION_HEADER = "x-partition"


class PartitionMatcher(Quick):
    depends_on_key_alone = False
    ignores_key = False

    def __init__(self) -> None:
        self._bindings: list[Binding] = []
        self._named: dict[str, Binding] | None = {}
        """None: to be looked up again, once for however many bindings came or went."""
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
        self._named = None

    def is_settled_by(self, routing_key: str, headers: Table) -> bool:
        """Whether equal keys without the header give this answer again."""
        return bool(routing_key) and PARTITION_HEADER not in headers

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]:
        return [binding.destination for binding in self.explain(routing_key, headers)]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        partitioner = self._partitioner
        if partitioner is None:
            return []
        explicit = headers.get(PARTITION_HEADER)
        if explicit is None:
            named = self._by_name().get(routing_key)
            if named is not None:
                return [named]
            return [self._bindings[partitioner.choose(routing_key.encode())]]
        if isinstance(explicit, bool) or not isinstance(explicit, int):
            return []
        return self._bindings[explicit : explicit + 1] if explicit >= 0 else []

    def _by_name(self) -> dict[str, Binding]:
        if self._named is None:
            keyed = ((one.routing_key, one) for one in self._bindings)
            self._named = {key: one for key, one in keyed if not key.isdecimal()}
        return self._named


def _order(binding: Binding) -> tuple[int, str]:
    order = binding.arguments.get(ORDER_ARGUMENT)
    return (order if isinstance(order, int) else 1 << 62, binding.routing_key)
