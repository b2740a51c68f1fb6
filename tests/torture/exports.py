"""R-24: exports of a broker that is being written to, killed at many points, then run again.

Points are named steps of an export (before, while and after a batch is written, before Spark
commits it, while finished tables take the place of older ones), moments while files are being
written, and moments of the whole run, the start and the end of the JVM among them. Every export
goes on in the directory that the killed ones left, incrementally or as a full one.

After every kill a plain Parquet reader sees no row twice. After every few kills writing pauses and
one export is left alone: then a plain reader and Spark both see every message, every event and
every record that clients know of exactly once, and the manifest counts as the broker does.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pamqp import commands

from tests.support.brokers import ROOT
from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.waiting import until

ROW, TITLE = "R-24", "exports killed and run again"
TABLES = ("messages", "events", "logs")
KEYS = {"messages": ("id",), "events": ("event_id", "position"), "logs": ("partition", "offset")}
KINDS = {"published": 1, "enqueued": 2, "delivered": 1, "acked": 1}
QUEUES = ["work", "copy"]
STEPS = (
    "planned", "beginning", "during", "counted", "visible", "committing", "telling", "ending",
    "swapping",
)  # fmt: skip
MOMENTS = ("midway", "anytime")
_KILLS_A_ROUND = 4
_PROGRAM = ROOT / "tests" / "spark" / "killed_export.py"
# Slow enough that an export's time is spent on its steps and not on rows: what is killed is the
# same, and a full export has few batches whatever has gathered: three of messages and of records,
# fifteen of events. The so-many-eth step that is killed may be of any of them.
_BATCH, _PAUSE = 5, 0.1
_LEAST_BATCH, _BATCHES = 250, 3
_CALLS = range(1, 9)
# Compiling costs more than these few rows do.
_QUICK = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", "LEVERET_SPARK_NICE": "0"}
_LOG = {"x-queue-type": "stream", "x-partitions": 2}


class Traffic:
    """Some 50 messages a second to a queue, whose consumer acks them, as many to a log.

    Each goes to a second queue as well, where nobody reads: it is published once and taken twice.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._ended = asyncio.Event()
        self.sent = self.refused = self.acked = 0
        self._unconfirmed: dict[int, None] = {}

    async def begin(self) -> None:
        address = self._broker.address
        self._client = await Client.connect(address, self._on_confirm)
        for name in QUEUES:
            await self._client.declare(name)
            bind = commands.Queue.Bind(queue=name, exchange="amq.fanout")
            await self._client.call(bind, commands.Queue.BindOk)
        await self._client.declare("feed", arguments=_LOG)
        await self._client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        self._reader = await Client.connect(address, on_delivery=self._on_delivery)
        await self._reader.consume("work", prefetch=10 * _BATCH)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        self._ended.clear()
        task = asyncio.create_task(self._work())
        try:
            yield
        finally:
            self._ended.set()
            self._task = task

    async def settle(self) -> None:
        """Everything sent is confirmed, delivered, acked, and all of that is on disk."""
        await self._task
        await until(lambda: not self._unconfirmed and self.sent == 2 * self.acked, 120)
        await self._reader.sync()

    def close(self) -> None:
        self._client.close()
        self._reader.close()

    async def _work(self) -> None:
        bodies = [bytes(100)] * _BATCH
        while not self._ended.is_set():
            self._client.publish_all("amq.fanout", "any", bodies, PROPERTIES["persistent"])
            self._client.publish_all("feed", f"k{self.sent % 97}", bodies, PROPERTIES["persistent"])
            self._unconfirmed |= dict.fromkeys(range(self.sent + 1, self.sent + 2 * _BATCH + 1))
            self.sent += 2 * _BATCH
            await self._client.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _PAUSE)

    def _on_confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        """The queue's and the log's confirms need not come in order."""
        for one in [n for n in self._unconfirmed if n <= tag] if multiple else [tag]:
            self._unconfirmed.pop(one, None)
        self.refused += not is_ack

    def _on_delivery(self, tag: int, _redelivered: bool, _body: bytes) -> None:
        self.acked = tag
        if tag % _BATCH == 0:
            self._reader.ack(tag, multiple=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader finds in an export: rows and different keys of each table, and events.

    `taken`: messages that stand with their first queue, and name both of them.
    """

    rows: dict[str, int]
    different: dict[str, int]
    events: dict[str, int]
    taken: int
    orphans: int
    ends: dict[str, int]
    """One more than the largest offset of each partition."""

    def problems(self) -> list[str]:
        return [
            f"{self.rows[table] - self.different[table]} rows of {table} are there twice"
            for table in TABLES
            if self.rows[table] != self.different[table]
        ]


class Exports:
    """The directory that all exports go to, and how it is looked at."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._data, self.out = directory / "data", directory / "out"
        directory.mkdir(parents=True, exist_ok=True)
        self._chance = random.Random(seed)
        self._said = directory / "export.log"
        self.length = 20.0
        """Seconds that a whole export took lately."""
        self.kills: Counter[str] = Counter()
        self.batch_rows = _LEAST_BATCH

    async def killed(self) -> str:
        """One export that ends early, or not at all if its point never came."""
        chance = self._chance
        point = chance.choice(STEPS) if chance.random() < 0.6 else chance.choice(MOMENTS)
        within = self.length if point == "anytime" else 1.5
        incremental = point != "swapping" and chance.random() < 0.7
        code = await self._run(point, incremental, chance.choice(_CALLS), chance.random() * within)
        if code not in (0, -signal.SIGKILL):
            return f"an export to be killed ({point}) ended with {code}: {self._said.read_text()}"
        self.kills[point] += code != 0
        return ""

    async def whole(self) -> str:
        began = time.monotonic()
        code = await self._run("never", self._chance.random() < 0.7, 0, 0)
        self.length = time.monotonic() - began
        return f"an export ended with {code}: {self._said.read_text()}" if code else ""

    async def _run(self, point: str, incremental: bool, call: int, seconds: float) -> int:
        arguments = [
            point, str(self._data), str(self.out), "--tables", ",".join(TABLES), "--call",
            str(call), "--milliseconds", str(int(seconds * 1000)), "--batch-rows",
            str(self.batch_rows),
        ]  # fmt: skip
        with self._said.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(_PROGRAM), *arguments, *["--incremental"] * incremental,
                env={**os.environ, **_QUICK, "PYTHONPATH": str(ROOT)}, process_group=0,
                stdout=log, stderr=log,
            )  # fmt: skip
            return await process.wait()

    def told(self) -> dict[str, dict[str, Any]]:
        read = json.loads((self.out / "manifest.json").read_text())
        tables: dict[str, dict[str, Any]] = read["tables"]
        return tables

    def by_a_plain_reader(self) -> Seen:
        import pyarrow.compute as pc

        found = {table: _arrow(self.out, table) for table in TABLES}
        keys = {
            table: found[table].group_by(list(KEYS[table])).aggregate([]).num_rows
            for table in TABLES
        }
        events, logs = found["events"], found["logs"]
        counted = events["event"].combine_chunks().value_counts().to_pylist()
        ends = logs.group_by("partition").aggregate([("offset", "max")]).to_pylist()
        known = pc.is_in(events["message"], value_set=found["messages"]["id"])
        return Seen(
            {table: found[table].num_rows for table in TABLES},
            keys,
            {row["values"]: row["counts"] for row in counted},
            sum(
                row["queue"] == QUEUES[0] and row["queues"] == QUEUES
                for row in found["messages"].select(["queue", "queues"]).to_pylist()
            ),
            events.num_rows - (pc.sum(known).as_py() or 0),
            {str(row["partition"]): row["offset_max"] + 1 for row in ends},
        )

    def by_spark(self, spark: Any) -> Seen:
        from pyspark.sql import functions as f

        found = {table: spark.read.parquet(str(self.out / table)) for table in TABLES}
        messages = found["messages"].select(f.col("id").alias("message"))
        orphans = found["events"].join(messages, "message", "left_anti").count()
        counted = found["events"].groupBy("event").count().collect()
        ends = found["logs"].groupBy("partition").agg(f.max("offset") + 1).collect()
        named = (f.col("queue") == QUEUES[0]) & (f.col("queues") == f.array(*map(f.lit, QUEUES)))
        return Seen(
            {table: found[table].count() for table in TABLES},
            {table: found[table].select(*KEYS[table]).distinct().count() for table in TABLES},
            dict(map(tuple, counted)),
            found["messages"].where(named).count(),
            orphans,
            {str(partition): end for partition, end in ends},
        )


def _arrow(out: Path, table: str) -> Any:
    """The key columns, as a program reads them that knows nothing of Leveret."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    more = {"events": ["message", "event"], "messages": ["queue", "queues"]}.get(table, [])
    names = [*KEYS[table], *more]
    if not any((out / table).rglob("*.parquet")):
        return pa.table({name: pa.array([], pa.int64()) for name in names})
    return ds.dataset(out / table, format="parquet", partitioning="hive").to_table(columns=names)


def _judged(exports: Exports, traffic: Traffic, spark: Any) -> list[str]:
    """After an export that nobody killed, of a broker at rest."""
    sent = traffic.sent // 2
    problems = [f"{traffic.refused} publishes were refused"] if traffic.refused else []
    for reader, seen in (
        ("a plain reader", exports.by_a_plain_reader()),
        ("Spark", exports.by_spark(spark)),
    ):
        wanted = {"messages": sent, "events": sent * sum(KINDS.values()), "logs": sent}
        problems += [f"{reader}: {said}" for said in seen.problems()]
        if seen.rows != wanted:
            problems.append(f"{reader} sees {seen.rows} rows instead of {wanted}")
        if seen.events != {kind: sent * times for kind, times in KINDS.items()}:
            problems.append(f"{reader} sees {seen.events} of {sent} messages sent")
        if seen.taken != sent:
            problems.append(f"{reader} sees {seen.taken} messages of {sent} with their queues")
        if seen.orphans:
            problems.append(f"{reader} sees {seen.orphans} events without a message")
        if sum(seen.ends.values()) != sent:
            problems.append(f"{reader} sees partitions that end at {seen.ends}, not {sent} records")
    for table, told in exports.told().items():
        if told["rows"] != told["source_rows"] or not told["complete"]:
            problems.append(f"the manifest says {told['rows']} of {told['source_rows']} {table}")
    return problems


async def kill_exports(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    if importlib.util.find_spec("pyspark") is None:
        return Outcome(ROW, TITLE, "not run", ("PySpark is not installed: `make setup` adds it",))
    from spark_sink.session import start

    exports, broker = Exports(directory, seed), BrokerProcess(directory / "data")
    await broker.start()
    traffic, problems, wholes = Traffic(broker), list[str](), 0
    await traffic.begin()
    spark = start("torture", "local[1]")
    try:
        for first in range(0, cycles, _KILLS_A_ROUND):
            with traffic.flowing():
                for number in range(first, min(first + _KILLS_A_ROUND, cycles)):
                    exports.batch_rows = max(_LEAST_BATCH, traffic.sent // 2 // _BATCHES)
                    problems += filter(None, [await exports.killed()])
                    problems += await asyncio.to_thread(_twice, exports)
                    progress(number + 1, cycles)
            await traffic.settle()
            wholes += 1
            failed = await exports.whole()
            problems += (
                [failed] if failed else await asyncio.to_thread(_judged, exports, traffic, spark)
            )
    finally:
        spark.stop()
    traffic.close()
    await broker.stop()
    points = ", ".join(f"{count} {point}" for point, count in sorted(exports.kills.items()))
    figures = (
        f"{exports.kills.total()} of {cycles} exports killed ({points}), {wholes} left alone; "
        f"{traffic.sent} messages and records, {traffic.sent // 2 * sum(KINDS.values())} events"
    )
    return Outcome(ROW, TITLE, figures, tuple(problems))


def _twice(exports: Exports) -> list[str]:
    return [f"after a kill: {said}" for said in exports.by_a_plain_reader().problems()]
