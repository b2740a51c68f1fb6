"""The table of workloads: what is run, which figures it yields, and the goals.

A goal is how many times better than RabbitMQ Leveret should be in the same run; a row without a
goal is for information. `limit` is an upper bound of Leveret's own figure. `others` has the
scenario for NATS and Redis, where the row means the same for them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.brokers import Kind
from benchmarks.figures import Unit
from benchmarks.peers.client import Client, Shape
from benchmarks.peers.registry import CLIENTS
from benchmarks.roles import Stream
from benchmarks.scenarios.backlog import Backlog
from benchmarks.scenarios.base import Scenario
from benchmarks.scenarios.cost import Cost
from benchmarks.scenarios.flow import Flow
from benchmarks.scenarios.footprint import Footprint
from benchmarks.scenarios.full_restart import FullRestart
from benchmarks.scenarios.group import GroupReplay
from benchmarks.scenarios.idle import IdleQueues
from benchmarks.scenarios.in_process import InProcess
from benchmarks.scenarios.latency import (
    ConfirmLatency,
    Lateness,
    RequestReply,
    SteadyLatency,
)
from benchmarks.scenarios.peers import (
    NatsRequestReply,
    PeerBacklog,
    PeerConfirmLatency,
    PeerFlow,
)
from benchmarks.scenarios.restart import LongLog
from benchmarks.scenarios.stalls import Stalls
from benchmarks.scenarios.transient_flood import TransientFlood
from benchmarks.stall_work import (
    DeclareWideLog,
    DeleteVhost,
    Import,
    LargeMessages,
    LargeTransactions,
    ManyGroups,
    ObjectMetrics,
    Read,
    ReadHistory,
    WideLog,
    Work,
)
from benchmarks.topology import Topology

BOTH = (Kind.LEVERET, Kind.RABBITMQ)
_KEYS = 6000
_BACKLOG_COUNT = 500_000
_LOG_COUNT = 300_000
_STREAM_ARGUMENTS = {"x-queue-type": "stream"}
_FIRST = {"x-stream-offset": "first"}


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the report: a figure of a workload."""

    key: str
    label: str
    unit: Unit
    goal: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    scenario: Scenario
    measures: tuple[Measure, ...]
    brokers: tuple[Kind, ...] = BOTH
    rounds: int | None = None
    others: Mapping[Kind, Scenario] = field(default_factory=dict)

    def maybe_scenario(self, kind: Kind) -> Scenario | None:
        """What is run on a broker; None if the workload is not defined for it."""
        return self.scenario if kind in self.brokers else self.others.get(kind)


@dataclass(frozen=True, slots=True)
class Growth:
    """A row made of two others: how many times slower `large` is than `small`, per broker."""

    name: str
    label: str
    small: str
    large: str
    limit: float


def _rate(label: str, goal: float | None = None, key: str = "rate") -> tuple[Measure, ...]:
    return (Measure(key, label, Unit.RATE, goal),)


def _single(
    queue: str, *, size: int = 100, durable: bool = False, window: int = 0, ack_every: int = 0
) -> Flow:
    stream = Stream("", (queue,), body_size=size, persistent=durable)
    topology = Topology((queue,), durable=durable)
    return Flow(topology, (stream,), window=window, ack_every=ack_every)


def _four(prefix: str, *, durable: bool = False, window: int = 0, ack_every: int = 0) -> Flow:
    queues = tuple(f"{prefix}.{number}" for number in range(4))
    streams = tuple(Stream("", (queue,), persistent=durable) for queue in queues)
    topology = Topology(queues, durable=durable)
    return Flow(topology, streams, window=window, ack_every=ack_every, consumers=4)


def _fanout() -> Flow:
    queues = tuple(f"bench.fanout.{number}" for number in range(10))
    topology = Topology(queues, exchange="bench.fanout", kind="fanout", keys=("any",))
    return Flow(topology, (Stream("bench.fanout", ("any",)),), consumers=2, copies=10)


def _topic(bindings: int) -> Flow:
    """One queue with `bindings` patterns, and 6,000 routing keys that match one pattern each."""
    name = f"bench.topic.{bindings:05}"
    patterns = tuple(f"site{number:05}.*.temp" for number in range(bindings))
    keys = tuple(f"site{number % bindings:05}.room{number:04}.temp" for number in range(_KEYS))
    topology = Topology((name,), exchange=name, kind="topic", keys=patterns)
    return Flow(topology, (Stream(name, keys, blob=_KEYS),))


def _others(build: Callable[[Client], Scenario]) -> dict[Kind, Scenario]:
    """The same scenario on NATS and on Redis."""
    return {kind: build(client) for kind, client in CLIENTS.items()}


def _other_flows(names: tuple[str, ...], shape: Shape) -> dict[Kind, Scenario]:
    return _others(lambda client: PeerFlow(client, names, shape))


def _backlog() -> Backlog:
    queue = "bench.backlog"
    return Backlog(
        Topology((queue,), durable=True),
        Stream("", (queue,), persistent=True),
        count=_BACKLOG_COUNT,
    )


def _log() -> Backlog:
    queue = "bench.log"
    return Backlog(
        Topology((queue,), durable=True, arguments=_STREAM_ARGUMENTS),
        Stream("", (queue,), persistent=True),
        count=_LOG_COUNT,
        arguments=_FIRST,
        replays=2,
    )


def _group() -> Flow:
    name = "bench.group"
    topology = Topology((name,), durable=True, arguments={**_STREAM_ARGUMENTS, "x-partitions": 3})
    keys = tuple(f"key{number:03}" for number in range(600))
    return Flow(
        topology,
        (Stream(name, keys, persistent=True),),
        window=1000,
        ack_every=100,
        consumers=3,
        in_order=False,
        sources=(name,) * 3,
        arguments={"x-group": "bench", **_FIRST},
        settles=False,
    )


def _group_replay() -> GroupReplay:
    name = "bench.group.replay"
    topology = Topology((name,), durable=True, arguments={**_STREAM_ARGUMENTS, "x-partitions": 3})
    keys = tuple(f"key{number:03}" for number in range(600))
    return GroupReplay(
        topology,
        Stream(name, keys, persistent=True),
        count=300_000,
        members=3,
        arguments={"x-group": "bench", **_FIRST},
    )


def _long_log() -> LongLog:
    return LongLog(Topology(("bench.long",), durable=True, arguments=_STREAM_ARGUMENTS))


def _steady() -> SteadyLatency:
    return SteadyLatency(Topology(("bench.steady",)), rate=2000)


def _confirm(*, consumed: bool) -> ConfirmLatency:
    queue = f"bench.confirm.{'consumed' if consumed else 'kept'}"
    return ConfirmLatency(Topology((queue,), durable=True), consumed=consumed)


def _percentiles(label: str, p50: float | None, p99: float | None) -> tuple[Measure, ...]:
    return (
        Measure("p50", f"{label}, p50", Unit.MILLISECONDS, p50),
        Measure("p99", f"{label}, p99", Unit.MILLISECONDS, p99),
    )


def _lateness(label: str) -> tuple[Measure, ...]:
    """On a quiet machine a message leaves within 2 ms."""
    return (
        Measure("p50", f"{label}, p50", Unit.MILLISECONDS, limit=2.0),
        Measure("p99", f"{label}, p99", Unit.MILLISECONDS),
    )


_TRANSIENT = (
    Workload(
        "transient-100b", _single("bench.100b"), _rate("transient, auto-ack, 1→1, 100 B", 1.8)
    ),
    Workload(
        "transient-1kib",
        _single("bench.1kib", size=1024),
        _rate("transient, auto-ack, 1→1, 1 KiB", 1.8),
    ),
    Workload(
        "confirms-ack100",
        _single("bench.ack100", window=1000, ack_every=100),
        _rate("transient, confirms, ack every 100", 1.8),
    ),
    Workload(
        "confirms-ack1",
        _single("bench.ack1", window=1000, ack_every=1),
        _rate("transient, confirms, ack each"),
    ),
    Workload("fanout-10", _fanout(), _rate("fanout 1→10, deliveries", 1.2)),
    Workload("transient-4x4", _four("bench.four"), _rate("transient, auto-ack, 4→4→4")),
    Workload("topic-25", _topic(25), _rate("topic, 25 bindings")),
    Workload("topic-10000", _topic(10_000), _rate("topic, 10,000 bindings")),
    Workload("topic-25000", _topic(25_000), _rate("topic, 25,000 bindings")),
    Workload(
        "request-reply",
        RequestReply(Topology(("bench.requests",))),
        (*_rate("request/reply, round trips"), *_percentiles("request/reply", None, None)),
        others={Kind.NATS: NatsRequestReply()},
    ),
    Workload("latency-2000", _steady(), _percentiles("latency at 2,000 msg/s", None, 1.0)),
)

_DURABLE = (
    Workload(
        "durable-ack100",
        _single("bench.durable100", durable=True, window=1000, ack_every=100),
        _rate("persistent, confirms, ack every 100", 1.8),
        others=_other_flows(("bench.durable100",), Shape.ACK_MANY),
    ),
    Workload(
        "durable-ack1",
        _single("bench.durable1", durable=True, window=1000, ack_every=1),
        _rate("persistent, confirms, ack each", 1.8),
        others=_other_flows(("bench.durable1",), Shape.ACK_EACH),
    ),
    Workload(
        "durable-4x4",
        _four("bench.durable4", durable=True, window=1000, ack_every=100),
        _rate("persistent, confirms, 4→4→4", 1.8),
        others=_other_flows(
            tuple(f"bench.durable4.{number}" for number in range(4)), Shape.ACK_MANY
        ),
    ),
    Workload(
        "durable-backlog",
        _backlog(),
        (
            *_rate("backlog, persistent: fill", 3.0, "fill"),
            *_rate("backlog, persistent: drain", 1.2, "drain"),
        ),
        rounds=1,
        others=_others(
            lambda client: PeerBacklog(client, "bench.backlog", Shape.ACK_MANY, _BACKLOG_COUNT)
        ),
    ),
    Workload(
        "durable-confirm-one",
        _confirm(consumed=False),
        _percentiles("publish one, wait for confirm", 1.0, None),
        others=_others(
            lambda client: PeerConfirmLatency(client, "bench.confirm.kept", consumed=False)
        ),
    ),
    Workload(
        "durable-confirm-consumed",
        _confirm(consumed=True),
        _percentiles("the same, consumer acks each", 1.0, None),
        others=_others(
            lambda client: PeerConfirmLatency(client, "bench.confirm.consumed", consumed=True)
        ),
    ),
    Workload(
        "late-delayed",
        Lateness(is_delayed=True),
        _lateness("delayed message, lateness"),
        brokers=(Kind.LEVERET,),
    ),
    Workload("late-expired", Lateness(is_delayed=False), _lateness("expired message, lateness")),
)

_LOG = (
    Workload(
        "log",
        _log(),
        (
            *_rate("log: publish with confirms", 1.2, "fill"),
            *_rate("log: replay from first", 1.5, "drain"),
        ),
        others=_others(
            lambda client: PeerBacklog(client, "bench.log", Shape.LOG, _LOG_COUNT, replays=2)
        ),
    ),
    Workload(
        "log-group",
        _group(),
        _rate("log: 3 consumers in a group, 3 partitions, while it is written"),
        brokers=(Kind.LEVERET,),
        rounds=1,
    ),
    Workload(
        "log-group-replay",
        _group_replay(),
        (
            *_rate("log: publish with confirms, 600 keys over 3 partitions", key="fill"),
            *_rate("log: replay from first by a group of 3, 3 partitions", key="drain"),
        ),
        brokers=(Kind.LEVERET,),
        rounds=1,
    ),
)

_LONG_LOG = (
    Workload(
        "long-log",
        _long_log(),
        (
            Measure(
                "startup",
                "start with 10,000,000 records in 1,000 segments",
                Unit.SECONDS,
                limit=3.0,
            ),
            *_rate("log: replay of the last 300,000 of 10,000,000", key="tail"),
        ),
        brokers=(Kind.LEVERET,),
        rounds=1,
    ),
)

_FOOTPRINT = (
    Workload(
        "footprint",
        Footprint(),
        (
            Measure("startup", "start until it accepts", Unit.SECONDS, 10.0, limit=0.5),
            Measure("idle", "resident when idle", Unit.MEGABYTES, 2.0),
            Measure("connection", "1,000 idle connections, each", Unit.KILOBYTES),
        ),
        others=dict.fromkeys(CLIENTS, Footprint()),
    ),
)

_FLOOD = tuple(
    Workload(
        name,
        TransientFlood(count),
        (
            Measure("filled", f"{label} transient messages of 100 B", Unit.MEGABYTES, limit=300),
            Measure("left", "more than before, when they are gone", Unit.MEGABYTES, limit=100),
        ),
        rounds=1,
    )
    for name, label, count in (
        ("flood-2000000", "2,000,000", 2_000_000),
        ("flood-10000000", "10,000,000", 10_000_000),
    )
)

_IN_PROCESS = (
    Workload(
        "in-process",
        InProcess(),
        (
            Measure("asyncio", "in-process start, asyncio", Unit.MILLISECONDS, limit=100.0),
            Measure("asyncio-first", "the first of a process", Unit.MILLISECONDS, limit=100.0),
            Measure("threaded", "in-process start, on a thread", Unit.MILLISECONDS, limit=100.0),
            Measure("threaded-first", "the first of a process", Unit.MILLISECONDS, limit=100.0),
        ),
        brokers=(Kind.LEVERET,),
        rounds=1,
    ),
)

_IDLE = (
    Workload(
        "idle-queues",
        IdleQueues(),
        (
            Measure(
                "made",
                "5,000 durable queues, 5 bindings each: a queue",
                Unit.KILOBYTES,
                limit=20.48,
            ),
            Measure("found", "the same after a restart: a queue", Unit.KILOBYTES, limit=20.48),
            Measure("startup", "start with them", Unit.SECONDS, limit=5.0),
        ),
        brokers=(Kind.LEVERET,),
        rounds=1,
    ),
    Workload(
        "full-restart",
        FullRestart(),
        (
            Measure(
                "cpu",
                "restart with 1,000,000 messages, 20,000 queues and 100,000 bindings: CPU time",
                Unit.SECONDS,
                limit=5.0,
            ),
            Measure("memory", "its memory then", Unit.MEGABYTES, limit=300.0),
        ),
        brokers=(Kind.LEVERET,),
        rounds=1,
    ),
)

_COST = (
    Workload(
        "history-cost",
        Cost(
            _single("bench.history", durable=True, window=1000, ack_every=100),
            without={"LEVERET_HISTORY": "off"},
        ),
        (Measure("lost", "persistent: lost to history", Unit.PERCENT, limit=20.0),),
        brokers=(Kind.LEVERET,),
        rounds=1,
    ),
    Workload(
        "polling-cost",
        Cost(_single("bench.polled"), polled=True),
        (Measure("lost", "transient: lost to polling the API", Unit.PERCENT, limit=5.0),),
        brokers=(Kind.LEVERET,),
        rounds=1,
    ),
)

STALLS: tuple[tuple[str, str, Work], ...] = (
    ("import-5000", "import of 5,000 queues, 25,000 bindings", Import(5_000)),
    ("import-20000", "import of 20,000 queues, 100,000 bindings", Import(20_000)),
    ("list-queues", "listing 20,000 queues", Read("/api/queues", 20_000)),
    ("list-bindings", "listing 100,000 bindings", Read("/api/bindings", 20_000)),
    ("export", "export of 20,000 queues, 100,000 bindings", Read("/api/definitions", 20_000)),
    ("object-metrics", "per-object metrics of 26,000 objects", ObjectMetrics()),
    ("delete-vhost", "deleting a vhost of 5,000 queues", DeleteVhost()),
    ("read-history", "reading history over HTTP", ReadHistory()),
    ("large-transient", "three transient messages of 128 MiB", LargeMessages(persistent=False)),
    ("large-persistent", "three persistent messages of 128 MiB", LargeMessages(persistent=True)),
    ("declare-wide-log", "declaring and deleting a log of 1,000 partitions", DeclareWideLog()),
    ("transactions", "commits of 100,000 messages", LargeTransactions()),
    ("wide-log", "use of a log of 1,000 partitions", WideLog()),
    ("many-groups", "2,000 groups on one log", ManyGroups()),
)
"""Name, label and work of each row; `stall_work.py` says how to add one."""


def _stall(name: str, label: str, work: Work) -> Workload:
    measures = (
        Measure("p50", f"confirms during {label}, p50", Unit.MILLISECONDS),
        Measure("p99", "the same, p99", Unit.MILLISECONDS, limit=50.0),
        Measure("max", "the same, longest", Unit.MILLISECONDS, limit=150.0),
        Measure("loop", "longest work of the event loop, CPU time", Unit.MILLISECONDS, limit=20.0),
    )
    return Workload(f"stall-{name}", Stalls(work), measures, brokers=(Kind.LEVERET,), rounds=1)


_STALLS = tuple(_stall(*row) for row in STALLS)

WORKLOADS = (
    *_TRANSIENT,
    *_DURABLE,
    *_LOG,
    *_LONG_LOG,
    *_FOOTPRINT,
    *_FLOOD,
    *_IN_PROCESS,
    *_IDLE,
    *_COST,
    *_STALLS,
)
GROWTHS = (
    Growth(
        "topic-growth",
        "topic: cost of 25,000 bindings over 25",
        small="topic-25",
        large="topic-25000",
        limit=2.0,
    ),
)
