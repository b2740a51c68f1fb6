"""Names of an import: which queues and exchanges there would be, worked out before any is made.

A partitioned log brings a queue for each of its partitions and an exchange with it, so its name may
clash with what is there, or with something else in the same file. What is said here is what
declaring would say, and whatever passes here is made in the order of the file without a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from exchange import SUPER_STREAM, ExchangeSpec
from leveret.broker.definition_file import Import
from leveret.broker.log_keeper import is_free, partition_names, partition_spec
from leveret.broker.names import require_unreserved
from leveret.broker.parameters import LIMITS_NAME, VHOST_LIMITS
from leveret.broker.vhost import NO_LIMIT, PREDECLARED, TRACE_EXCHANGE
from leveret.model.errors import PreconditionFailed
from queues import QueueSpec
from queues.options import require_same_queue
from queues.stream import parse_log_spec

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

Place: TypeAlias = tuple[str, str]
"""A virtual host and a name in it."""


class Names:
    """Refuses in the constructor; `queues` and `exchanges` are what there would be."""

    def __init__(self, broker: Broker, plan: Import) -> None:
        self._broker = broker
        self.queues: dict[Place, QueueSpec] = {
            (vhost.name, name): queue.spec
            for vhost in broker.vhosts.values()
            for name, queue in vhost.queues.items()
        }
        self.exchanges: dict[Place, ExchangeSpec] = {
            (name, own): ExchangeSpec(own, kind, durable=True)
            for name, _ in plan.vhosts
            for own, kind in (*PREDECLARED, (TRACE_EXCHANGE, "topic"))
        }
        for held in broker.vhosts.values():
            self.exchanges |= {(held.name, name): one.spec for name, one in held.exchanges.items()}
        self._held = frozenset(self.queues)
        self._parts: dict[Place, str] = {}
        for vhost, spec in plan.queues:
            self._add_queue(vhost, spec)
        for vhost, exchange in plan.exchanges:
            self._add_exchange(vhost, exchange)
        self._check_limits(plan)

    def _add_queue(self, vhost: str, spec: QueueSpec) -> None:
        place, where = (vhost, spec.name), f"queue '{spec.name}' in vhost '{vhost}'"
        if place in self._held:
            return  # it stays as it is
        if place in self._parts:
            self._require_part(place, spec)
            return
        partitions = parse_log_spec(spec, where).partitions if spec.kind == "stream" else 0
        self.queues[place] = spec
        if partitions:
            self._add_partitions(vhost, spec, partitions)

    def _add_partitions(self, vhost: str, spec: QueueSpec, partitions: int) -> None:
        require_unreserved("queue", spec.name)
        held = self.exchanges.get((vhost, spec.name))
        if held is not None and held.arguments.get(SUPER_STREAM) is not True:
            raise PreconditionFailed(f"exchange '{spec.name}' in vhost '{vhost}' exists")
        front = ExchangeSpec(spec.name, "direct", True, arguments={SUPER_STREAM: True})
        self.exchanges.setdefault((vhost, spec.name), front)
        for name in partition_names(spec.name, partitions):
            place, wanted = (vhost, name), partition_spec(spec, name)
            if place in self.queues:
                self._require_free(place)
                self._require_part(place, wanted)
            self.queues[place] = wanted
            self._parts[place] = spec.name

    def _require_free(self, place: Place) -> None:
        vhost, name = place
        spec = self.queues[place]
        is_whole = spec.kind == "stream" and not spec.arguments.get("x-partitions")
        is_used = place in self._held and not is_free(self._broker.vhosts[vhost].queues[name])
        if not is_whole or is_used or place in self._parts:
            raise PreconditionFailed(f"queue '{name}' in vhost '{vhost}' exists")

    def _require_part(self, place: Place, spec: QueueSpec) -> None:
        require_same_queue(f"queue '{place[1]}' in vhost '{place[0]}'", self.queues[place], spec)

    def _add_exchange(self, vhost: str, spec: ExchangeSpec) -> None:
        place = (vhost, spec.name)
        if place in self.exchanges:
            return  # it stays as it is, or is the front of a log
        require_unreserved("exchange", spec.name)
        self.exchanges[place] = spec

    def _check_limits(self, plan: Import) -> None:
        """The limits of the file itself hold already."""
        limits = (VHOST_LIMITS, LIMITS_NAME)
        stated = {key[0]: value for key, value in plan.parameters if key[1:] == limits}
        new: dict[str, int] = {}
        for vhost, _ in self.queues.keys() - self._held:
            new[vhost] = new.get(vhost, 0) + 1
        for vhost, count in sorted(new.items()):
            there = sum(place[0] == vhost for place in self._held)
            most = stated.get(vhost, self._broker.parameters.vhost_limits(vhost)).get(
                "max-queues", self._broker.settings.queue_max or NO_LIMIT
            )
            if 0 <= most < there + count:
                raise PreconditionFailed(
                    f"adding {count} queue(s) to virtual host '{vhost}' would exceed its limit of "
                    f"{most} queue(s); it has {there} now"
                )
