"""The parts of the long soak: queues, publishers, consumers, and policies that change."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from tests.torture.client import Client
from tests.torture.soak_clients import (
    DEAD_LETTER_QUEUE,
    DEAD_LETTERED,
    DEAD_LETTERING,
    IN_MEMORY,
    LOG,
    LOGGED,
    LOSSY,
    STRICT,
    TRANSIENT,
    WITH_HEADER,
    ConsumerPlan,
    PublisherPlan,
)  # fmt: skip

PUBLISHERS = (
    PublisherPlan(1, "", "work-a", ("work-a",)),
    PublisherPlan(2, "", "work-a", ("work-a",)),
    PublisherPlan(3, "", "work-b", ("work-b",)),
    PublisherPlan(4, "", "polled", ("polled",)),
    PublisherPlan(5, "soak.fan", "", ("fan-a", "fan-b")),
    PublisherPlan(6, "soak.topic", "soak.eu.orders", ("topics",)),
    PublisherPlan(7, "soak.headers", "", ("headed",), WITH_HEADER, burst=2),
    PublisherPlan(8, "", "refusing", ("refusing",), burst=60, pause=1.0),
    PublisherPlan(9, "", "expiring", ("expiring",), burst=20),
    PublisherPlan(10, "", "bounded", ("bounded",), burst=100, pause=1.0),
    PublisherPlan(11, "", "dead-lettering", ("dead-lettering",), burst=60, pause=0.5),
    PublisherPlan(12, "", "in-memory", ("in-memory",), TRANSIENT),
    PublisherPlan(13, LOG, "one", (LOG,)),
    PublisherPlan(14, LOG, "two", (LOG,)),
)
MEMORY_FILLER = "memory-filler"
"""The queue that fills the memory."""
GROUP = {"x-group": "G", "x-stream-offset": "first"}
CONSUMERS = (
    ConsumerPlan("work-a", STRICT, prefetch=100),
    ConsumerPlan("work-b", STRICT, prefetch=20, requeued=0.1),
    ConsumerPlan("polled", STRICT, gets=True, requeued=0.05),
    ConsumerPlan("fan-a", STRICT, prefetch=0),
    ConsumerPlan("fan-b", STRICT, requeued=0.02),
    ConsumerPlan("topics", STRICT),
    ConsumerPlan("headed", STRICT, prefetch=1),
    ConsumerPlan("refusing", STRICT, prefetch=5, pause=0.01),
    ConsumerPlan("expiring", LOSSY, prefetch=5, pause=0.02, requeued=0.1),
    ConsumerPlan("bounded", LOSSY, prefetch=10, pause=0.01),
    ConsumerPlan("dead-lettering", DEAD_LETTERING, prefetch=5, pause=0.02, rejected=0.3),
    ConsumerPlan(DEAD_LETTER_QUEUE, DEAD_LETTERED, prefetch=200),
    ConsumerPlan("in-memory", IN_MEMORY, no_ack=True),
    ConsumerPlan(LOG, LOGGED, arguments=GROUP),
)
KINDS = {plan.queue: plan.ledger for plan in CONSUMERS}
DURABLE = [queue for queue, ledger in KINDS.items() if ledger not in (IN_MEMORY, LOGGED)]
ARGUMENTS: dict[str, Any] = {
    "refusing": {"x-max-length": 30, "x-overflow": "reject-publish"},
    "dead-lettering": {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": DEAD_LETTER_QUEUE,
    },
    LOG: {"x-queue-type": "stream", "x-partitions": 2},
}
EXCHANGES: tuple[tuple[str, str, str, str, Any], ...] = (
    ("soak.fan", "fanout", "fan-a", "", {}),
    ("soak.fan", "fanout", "fan-b", "", {}),
    ("soak.topic", "topic", "topics", "soak.*.#", {}),
    ("soak.headers", "headers", "headed", "", {"x-match": "all", "kind": "soak"}),
)
POLICIES: tuple[tuple[str, str, tuple[dict[str, Any], ...]], ...] = (
    ("length", "^bounded$", ({"max-length": 40}, {"max-length": 15}, {"max-length": 70})),
    ("age", "^expiring$", ({"message-ttl": 200}, {"message-ttl": 900})),
    ("dead-lettering", "^dead-lettering$",
     ({"message-ttl": 300, "max-length": 20}, {"max-length": 30}, {"message-ttl": 150})),
    # Its history would only fill the small disk.
    ("no-history", f"^{MEMORY_FILLER}$", ({"history": "off"},)),
    ("large-limits", "^work-", ({"max-length": 1_000_000}, {"message-ttl": 86_400_000}, {})),
)  # fmt: skip
TRIMMING_MALLOC = (
    "-c",
    "import ctypes, signal, sys; trim = ctypes.CDLL(None).malloc_trim;"
    "signal.signal(signal.SIGUSR1, lambda *_: trim(0));"
    "from leveret.cli import main; sys.exit(main())",
)
"""Runs the broker so that SIGUSR1 returns the free memory of the C library to the system. The
library itself does so rarely, and memory filled by an alarm (20 MB) would hide a leak."""


async def declare_all(address: tuple[str, int]) -> None:
    client = await Client.connect(address)
    for queue in KINDS:
        await client.declare(queue, arguments=ARGUMENTS.get(queue))
    for name, kind, queue, key, arguments in EXCHANGES:
        declare = commands.Exchange.Declare(exchange=name, exchange_type=kind, durable=True)
        await client.call(declare, commands.Exchange.DeclareOk)
        bind = commands.Queue.Bind(0, queue, name, key, False, arguments)
        await client.call(bind, commands.Queue.BindOk)
    client.close()
