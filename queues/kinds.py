"""Which arguments belong to which type of queue, as RabbitMQ 3.10 sees it and as Leveret does.

RabbitMQ refuses an argument that another type of queue has, and lets pass what none has. So does
Leveret, except where the argument means something here on this type, too. Plain data.
"""

from __future__ import annotations

QUEUE_KINDS = ("classic", "quorum", "stream")

_EVERY_QUEUE = frozenset({"x-queue-type", "x-max-length-bytes"})
_LIMITED = _EVERY_QUEUE | {
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-max-length", "x-overflow", "x-single-active-consumer",
}  # fmt: skip
IN_RABBITMQ: dict[str, frozenset[str]] = {
    "classic": _LIMITED
    | {"x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"},
    "quorum": _LIMITED
    | {
        "x-dead-letter-strategy", "x-delivery-limit", "x-quorum-initial-group-size",
        "x-max-in-memory-length", "x-max-in-memory-bytes", "x-quorum-target-group-size",
        "x-queue-leader-locator",
    },
    "stream": _EVERY_QUEUE
    | {
        "x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size",
        "x-stream-filter-size-bytes", "x-queue-leader-locator",
    },
}  # fmt: skip
_ONLY_HERE: dict[str, frozenset[str]] = {
    "classic": frozenset({"x-delivery-limit", "x-dead-letter-strategy", "x-queue-leader-locator"}),
    "quorum": frozenset({"x-max-priority"}),
    "stream": frozenset(),
}
_LOGS_ALONE = frozenset(
    {"x-partitions", "x-cleanup-policy", "x-delete-retention", "x-sync-interval"}
)
_NEVER_LOGS = frozenset({"x-message-deduplication", "x-cache-size", "x-cache-ttl"})
_JUDGED = frozenset[str]().union(*IN_RABBITMQ.values())

REFUSED_BY_RABBITMQ = {kind: _JUDGED - known for kind, known in IN_RABBITMQ.items()}
REFUSED = {
    kind: names - _ONLY_HERE[kind] | (_NEVER_LOGS if kind == "stream" else _LOGS_ALONE)
    for kind, names in REFUSED_BY_RABBITMQ.items()
}
