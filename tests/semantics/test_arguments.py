"""Row C-89, complete: every argument with valid and invalid values on every type of queue.

Both brokers are tested with one table, which includes the differences on purpose.
"""

from __future__ import annotations

import pytest
from pamqp.commands import Channel, Queue

KINDS = ("classic", "quorum", "stream")
ACCEPTED, OTHER_TYPE, INVALID = "taken", "of another type", "wrong value"

VALUES: dict[str, tuple[str, list[object], list[object]]] = {
    "x-message-ttl": ("cq", [1_000, 0], [-1, "a", True]),
    "x-expires": ("cq", [10_000], [0, -1, "a"]),
    "x-max-length": ("cq", [10, 0], [-1, "a"]),
    "x-max-length-bytes": ("cqs", [1_000], [-1, "a"]),
    "x-overflow": ("cq", ["drop-head", "reject-publish", "reject-publish-dlx"], ["bad", 1]),
    "x-dead-letter-exchange": ("cq", ["", "none"], []),
    "x-dead-letter-routing-key": ("cq", [], ["alone", 1]),
    "x-dead-letter-strategy": ("q", ["at-most-once", "at-least-once"], ["bad", 1]),
    "x-max-priority": ("c", [10, 255], [256, -1, "a"]),
    "x-single-active-consumer": ("cq", [True, False], ["true", 1]),
    "x-queue-mode": ("c", ["lazy", "default"], ["bad", 1]),
    "x-queue-version": ("c", [1, 2], [3, "a"]),
    "x-queue-master-locator": ("c", ["min-masters", "client-local"], []),
    "x-queue-leader-locator": ("qs", ["client-local", "balanced"], ["bad", 1]),
    "x-delivery-limit": ("q", [5, 0], []),
    "x-quorum-initial-group-size": ("q", [3], [0, -1, "a"]),
    "x-initial-cluster-size": ("s", [3], [0, -1, "a"]),
    "x-max-in-memory-length": ("q", [10], [-1, "a"]),
    "x-max-in-memory-bytes": ("q", [10], [-1, "a"]),
    "x-max-age": ("s", ["1h"], ["1x", 1]),
    "x-stream-max-segment-size-bytes": ("s", [1_000_000], [-1, "a"]),
    "x-unknown": ("cqs", ["this", 1, False], []),
}
"""By name: queue types with this argument in RabbitMQ 3.10, valid and invalid values."""

ALSO_IN_LEVERET = {
    "classic": {"x-delivery-limit", "x-dead-letter-strategy", "x-queue-leader-locator"},
    "quorum": {"x-max-priority"},
    "stream": set[str](),
}
ONLY_IN_LEVERET: dict[str, tuple[str, list[object], list[object]]] = {
    "x-partitions": ("s", [2], [0, "a"]),
    "x-cleanup-policy": ("s", ["compact", "delete"], ["bad"]),
    "x-delete-retention": ("s", ["1h"], ["1x"]),
    "x-sync-interval": ("s", [100], [-1, "a"]),
    "x-stream-filter-size-bytes": ("s", [16, 255], [15, 256, "a"]),
    "x-quorum-target-group-size": ("q", [3], [0, "a"]),
    "x-queue-master-locator": ("c", ["random"], ["bad", 1]),
    "x-delivery-limit": ("cq", [-1], ["a"]),
    "x-consumer-timeout": ("cqs", [60_000], [-1, "a"]),
    "x-message-deduplication": ("cq", [True], ["a"]),
    "x-cache-size": ("cq", [9], [0]),
    "x-cache-ttl": ("cq", [9], [0]),
}
"""Arguments that RabbitMQ 3.10 ignores, or that make it fail."""


def outcome(channel, queue, kind, name, value):
    """The outcome of a declare; the channel is open afterwards."""
    arguments = {"x-queue-type": kind, name: value}
    channel.send(Queue.Declare(queue=queue, durable=True, arguments=arguments))
    answer = channel.expect((Queue.DeclareOk, Channel.Close))
    if isinstance(answer, Queue.DeclareOk):
        channel.call(Queue.Delete(queue=queue))
        return ACCEPTED
    assert isinstance(answer, Channel.Close)
    channel.send(Channel.CloseOk())
    channel.call(Channel.Open())
    start = f"PRECONDITION_FAILED - invalid arg '{name}' for queue '{queue}' in vhost "
    assert answer.reply_code == 406 and answer.reply_text.startswith(start)
    end = f" of queue type rabbit_{kind}_queue"
    return OTHER_TYPE if answer.reply_text.endswith(end) else INVALID


def expected_outcomes_of(table, kind, also=frozenset()):
    """The expected outcome of each value, according to the table."""
    for name, (kinds, good, bad) in table.items():
        is_known = kind[0] in kinds or name in also
        for values, outcome_ in ((good, ACCEPTED), (bad, INVALID)):
            for value in values:
                yield name, value, outcome_ if is_known else OTHER_TYPE


@pytest.mark.parametrize("kind", KINDS)
def test_c089_every_argument_on_every_type_of_queue(channel, names, kind, expected):
    also = expected(leveret=ALSO_IN_LEVERET[kind], rabbitmq=set())
    expected_outcomes = list(expected_outcomes_of(VALUES, kind, also))
    only_in_leveret = list(expected_outcomes_of(ONLY_IN_LEVERET, kind))
    expected_outcomes += expected(leveret=only_in_leveret, rabbitmq=[])
    queue = names.queue()
    outcomes = [
        (name, value, outcome(channel, queue, kind, name, value))
        for name, value, _ in expected_outcomes
    ]
    assert outcomes == expected_outcomes
