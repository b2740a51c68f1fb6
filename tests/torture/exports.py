"""R-24: exports of a broker under load are killed at many points and run again.

The points are named steps of an export (before, while and after a batch is written, before Spark
commits it, while finished tables replace older ones), moments while files are written, and moments
of the whole run, including the start and the end of the JVM. Every export continues in the
directory that the killed exports left, incrementally or as a full export.

After every kill a plain Parquet reader sees no row twice. After every few kills the load pauses and
one export is not killed: then a plain reader and Spark both see every message, event and record
known to the clients exactly once, and the manifest agrees with the broker's counts.
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
from tests.support.polling import wait_until_async
from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

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
_KILLS_PER_ROUND = 4
_PROGRAM = ROOT / "tests" / "spark" / "killed_export.py"
# The load is slow, so that an export spends its time on steps and not on rows, and a full export
# always has few batches: three of messages, three of records, fifteen of events. The Nth step,
# which is killed, may belong to any of them.
_BATCH, _PAUSE = 5, 0.1
_MIN_BATCH, _BATCHES = 250, 3
_CALLS = range(1, 9)
# Compiling would cost more than these few rows.
_SPARK_OPTIONS = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1", "LEVERET_SPARK_NICE": "0"}
_LOG = {"x-queue-type": "stream", "x-partitions": 2}


class Traffic:
    """About 50 messages per second to a queue, whose consumer acks them, and as many to a log.

    Each message also goes to a second queue without a consumer: published once, enqueued twice.
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
        """Wait until everything sent is confirmed, delivered and acked, and on disk."""
        await self._task
        await wait_until_async(lambda: not self._unconfirmed and self.sent == 2 * self.acked, 120)
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
        """Confirms of the queue and of the log may arrive out of order."""
        for number in [n for n in self._unconfirmed if n <= tag] if multiple else [tag]:
            self._unconfirmed.pop(number, None)
        self.refused += not is_ack

    def _on_delivery(self, tag: int, _redelivered: bool, _body: bytes) -> None:
        self.acked = tag
        if tag % _BATCH == 0:
            self._reader.ack(tag, multiple=True)


@dataclass(frozen=True, slots=True)
class ExportContents:
    """What a reader finds in an export: rows and distinct keys of each table, and events.

    `taken` counts messages that have their first queue in `queue` and both in `queues`.
    """

    rows: dict[str, int]
    different: dict[str, int]
    events: dict[str, int]
    taken: int
    orphans: int
    ends: dict[str, int]
    """The largest offset of each partition, plus one."""

    def problems(self) -> list[str]:
        return [
            f"{self.rows[table] - self.different[table]} rows of {table} are duplicates"
            for table in TABLES
            if self.rows[table] != self.different[table]
        ]


class Exports:
    """The directory of all exports, and ways to read it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._data, self.out = directory / "data", directory / "out"
        directory.mkdir(parents=True, exist_ok=True)
        self._chance = random.Random(seed)
        self._said = directory / "export.log"
        self.length = 20.0
        """Seconds that the last complete export took."""
        self.kills: Counter[str] = Counter()
        self.batch_rows = _MIN_BATCH

    async def killed(self) -> str:
        """Run an export that is killed at a point, or finishes if it never reaches the point."""
        rng = self._chance
        point = rng.choice(STEPS) if rng.random() < 0.6 else rng.choice(MOMENTS)
        within = self.length if point == "anytime" else 1.5
        incremental = point != "swapping" and rng.random() < 0.7
        code = await self._run(point, incremental, rng.choice(_CALLS), rng.random() * within)
        if code not in (0, -signal.SIGKILL):
            return f"an export to be killed ({point}) ended with {code}: {self._said.read_text()}"
        self.kills[point] += code != 0
        return ""

    async def run_whole(self) -> str:
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
                env={**os.environ, **_SPARK_OPTIONS, "PYTHONPATH": str(ROOT)}, process_group=0,
                stdout=log, stderr=log,
            )  # fmt: skip
            return await process.wait()

    def manifest_tables(self) -> dict[str, dict[str, Any]]:
        read = json.loads((self.out / "manifest.json").read_text())
        tables: dict[str, dict[str, Any]] = read["tables"]
        return tables

    def read_with_pyarrow(self) -> ExportContents:
        import pyarrow.compute as pc

        tables = {table: _arrow(self.out, table) for table in TABLES}
        keys = {
            table: tables[table].group_by(list(KEYS[table])).aggregate([]).num_rows
            for table in TABLES
        }
        events, logs = tables["events"], tables["logs"]
        counted = events["event"].combine_chunks().value_counts().to_pylist()
        ends = logs.group_by("partition").aggregate([("offset", "max")]).to_pylist()
        known = pc.is_in(events["message"], value_set=tables["messages"]["id"])
        return ExportContents(
            {table: tables[table].num_rows for table in TABLES},
            keys,
            {row["values"]: row["counts"] for row in counted},
            sum(
                row["queue"] == QUEUES[0] and row["queues"] == QUEUES
                for row in tables["messages"].select(["queue", "queues"]).to_pylist()
            ),
            events.num_rows - (pc.sum(known).as_py() or 0),
            {str(row["partition"]): row["offset_max"] + 1 for row in ends},
        )

    def read_with_spark(self, spark: Any) -> ExportContents:
        from pyspark.sql import functions as f

        tables = {table: spark.read.parquet(str(self.out / table)) for table in TABLES}
        messages = tables["messages"].select(f.col("id").alias("message"))
        orphans = tables["events"].join(messages, "message", "left_anti").count()
        counted = tables["events"].groupBy("event").count().collect()
        ends = tables["logs"].groupBy("partition").agg(f.max("offset") + 1).collect()
        named = (f.col("queue") == QUEUES[0]) & (f.col("queues") == f.array(*map(f.lit, QUEUES)))
        return ExportContents(
            {table: tables[table].count() for table in TABLES},
            {table: tables[table].select(*KEYS[table]).distinct().count() for table in TABLES},
            dict(map(tuple, counted)),
            tables["messages"].where(named).count(),
            orphans,
            {str(partition): end for partition, end in ends},
        )


def _arrow(out: Path, table: str) -> Any:
    """The key columns, as a program without knowledge of Leveret reads them."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    more = {"events": ["message", "event"], "messages": ["queue", "queues"]}.get(table, [])
    names = [*KEYS[table], *more]
    if not any((out / table).rglob("*.parquet")):
        return pa.table({name: pa.array([], pa.int64()) for name in names})
    return ds.dataset(out / table, format="parquet", partitioning="hive").to_table(columns=names)


def _judged(exports: Exports, traffic: Traffic, spark: Any) -> list[str]:
    """Problems of an export that was not killed, of a broker without load."""
    sent = traffic.sent // 2
    problems = [f"{traffic.refused} publishes were refused"] if traffic.refused else []
    for reader, contents in (
        ("a plain reader", exports.read_with_pyarrow()),
        ("Spark", exports.read_with_spark(spark)),
    ):
        expected = {"messages": sent, "events": sent * sum(KINDS.values()), "logs": sent}
        problems += [f"{reader}: {problem}" for problem in contents.problems()]
        if contents.rows != expected:
            problems.append(f"{reader} sees {contents.rows} rows instead of {expected}")
        if contents.events != {kind: sent * times for kind, times in KINDS.items()}:
            problems.append(f"{reader} sees {contents.events} of {sent} messages sent")
        if contents.taken != sent:
            problems.append(f"{reader} sees {contents.taken} messages of {sent} with their queues")
        if contents.orphans:
            problems.append(f"{reader} sees {contents.orphans} events without a message")
        if sum(contents.ends.values()) != sent:
            problems.append(
                f"{reader} sees partitions that end at {contents.ends}, not {sent} records"
            )
    for table, counts in exports.manifest_tables().items():
        if counts["rows"] != counts["source_rows"] or not counts["complete"]:
            problems.append(
                f"the manifest says {counts['rows']} of {counts['source_rows']} {table}"
            )
    return problems


async def kill_exports(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    if importlib.util.find_spec("pyspark") is None:
        return Outcome(ROW, TITLE, "not run", ("PySpark is not installed: `make setup` adds it",))
    from leveret.spark_sink.session import start

    exports, broker = Exports(directory, seed), BrokerProcess(directory / "data")
    await broker.start()
    traffic, problems, wholes = Traffic(broker), list[str](), 0
    await traffic.begin()
    spark = start("torture", "local[1]")
    try:
        for first in range(0, cycles, _KILLS_PER_ROUND):
            with traffic.flowing():
                for number in range(first, min(first + _KILLS_PER_ROUND, cycles)):
                    exports.batch_rows = max(_MIN_BATCH, traffic.sent // 2 // _BATCHES)
                    problems += filter(None, [await exports.killed()])
                    problems += await asyncio.to_thread(_duplicates_after_kill, exports)
                    progress(number + 1, cycles)
            await traffic.settle()
            wholes += 1
            failed = await exports.run_whole()
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


def _duplicates_after_kill(exports: Exports) -> list[str]:
    return [f"after a kill: {problem}" for problem in exports.read_with_pyarrow().problems()]
