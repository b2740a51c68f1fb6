"""What the long soak is made of: queues, who publishes and consumes, policies that change."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from tests.torture.client import Client
from tests.torture.soak_clients import (
    DEAD,
    DYING,
    FLYING,
    GRAVE,
    LOG,
    LOGGED,
    LOSSY,
    STRICT,
    TRANSIENT,
    WITH_HEADER,
    Flow,
    Habit,
)  # fmt: skip

FLOWS = (
    Flow(1, "", "work-a", ("work-a",)),
    Flow(2, "", "work-a", ("work-a",)),
    Flow(3, "", "work-b", ("work-b",)),
    Flow(4, "", "polled", ("polled",)),
    Flow(5, "soak.fan", "", ("fan-a", "fan-b")),
    Flow(6, "soak.topic", "soak.eu.orders", ("topics",)),
    Flow(7, "soak.headers", "", ("headed",), WITH_HEADER, burst=2),
    Flow(8, "", "refusing", ("refusing",), burst=60, pause=1.0),
    Flow(9, "", "expiring", ("expiring",), burst=20),
    Flow(10, "", "bounded", ("bounded",), burst=100, pause=1.0),
    Flow(11, "", "doomed", ("doomed",), burst=60, pause=0.5),
    Flow(12, "", "flying", ("flying",), TRANSIENT),
    Flow(13, LOG, "one", (LOG,)),
    Flow(14, LOG, "two", (LOG,)),
)
WEIGHT = "weight"
"""What fills the memory."""
GROUP = {"x-group": "G", "x-stream-offset": "first"}
HABITS = (
    Habit("work-a", STRICT, prefetch=100),
    Habit("work-b", STRICT, prefetch=20, requeued=0.1),
    Habit("polled", STRICT, gets=True, requeued=0.05),
    Habit("fan-a", STRICT, prefetch=0),
    Habit("fan-b", STRICT, requeued=0.02),
    Habit("topics", STRICT),
    Habit("headed", STRICT, prefetch=1),
    Habit("refusing", STRICT, prefetch=5, pause=0.01),
    Habit("expiring", LOSSY, prefetch=5, pause=0.02, requeued=0.1),
    Habit("bounded", LOSSY, prefetch=10, pause=0.01),
    Habit("doomed", DYING, prefetch=5, pause=0.02, rejected=0.3),
    Habit(GRAVE, DEAD, prefetch=200),
    Habit("flying", FLYING, no_ack=True),
    Habit(LOG, LOGGED, arguments=GROUP),
)
KINDS = {habit.queue: habit.ledger for habit in HABITS}
DURABLE = [queue for queue, ledger in KINDS.items() if ledger not in (FLYING, LOGGED)]
ARGUMENTS: dict[str, Any] = {
    "refusing": {"x-max-length": 30, "x-overflow": "reject-publish"},
    "doomed": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": GRAVE},
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
    ("doom", "^doomed$", ({"message-ttl": 300, "max-length": 20}, {"max-length": 30},
                          {"message-ttl": 150})),
    ("weightless", f"^{WEIGHT}$", ({"history": "off"},)),  # it would only fill the small disk
    ("roomy", "^work-", ({"max-length": 1_000_000}, {"message-ttl": 86_400_000}, {})),
)  # fmt: skip
GIVING_BACK = (
    "-c",
    "import ctypes, signal, sys; trim = ctypes.CDLL(None).malloc_trim;"
    "signal.signal(signal.SIGUSR1, lambda *_: trim(0));"
    "from leveret.cli import main; sys.exit(main())",
)
"""The same broker, but when asked to it gives back what memory its C library keeps free. It does so
by itself, but rarely, and what a memory alarm has filled (20 MB) would hide what grows."""


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
