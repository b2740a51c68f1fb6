"""The memory of an export of a long history, and how it grows with the history.

The broker is filled to each of the sizes in turn; after each one, `leveret export` writes the
history to a new directory while the memory of its processes is sampled twice a second. Memory is
the proportional set size: shared pages are divided among the processes that share them.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.brokers import Kind, start
from benchmarks.spark import history
from benchmarks.workers import RunError

# The default of 1 GiB is less than five million messages need.
_SETTINGS = {"LEVERET_HISTORY_MAX_BYTES": "100GiB"}
_SAMPLE_SECONDS = 0.5
_EVENTS_PER_MESSAGE = 4


@dataclass(frozen=True, slots=True)
class ExportMemory:
    """One export. Peak memory in bytes of the JVM, and of all Python processes together."""

    messages: int
    rows: int
    seconds: float
    jvm: int
    python: int


def measure(sizes: Sequence[int], scratch: Path, say: Callable[[str], None]) -> list[ExportMemory]:
    results, filled = [], 0
    broker = start(Kind.LEVERET, _SETTINGS)
    try:
        for size in sizes:
            say(f"spark: filling a broker with {size:,} messages")
            history.send_messages(broker, size - filled)
            filled = size
            say(f"spark: exporting the history of {size:,} messages")
            results.append(_export(broker.directory / "data", scratch / f"large-{size}", size))
    finally:
        broker.stop()
    return results


def _export(data_dir: Path, out: Path, messages: int) -> ExportMemory:
    command = [sys.executable, "-m", "leveret", "export", "--data-dir", str(data_dir)]
    command += ["--to", str(out), "--table", "messages,events"]
    began = time.monotonic()
    process = subprocess.Popen(
        command, env={**os.environ, "LEVERET_SPARK_NICE": "0"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with _sampled(process.pid) as peak:
        code = process.wait()
    seconds = time.monotonic() - began
    if code:
        raise RunError(f"the export of {messages:,} messages exited with code {code}")
    tables = json.loads((out / "manifest.json").read_text())["tables"]
    rows = {name: int(table["rows"]) for name, table in tables.items()}
    if rows != {"messages": messages, "events": messages * _EVENTS_PER_MESSAGE}:
        raise RunError(f"{messages:,} messages were sent, but {rows} exported")
    shutil.rmtree(out)
    return ExportMemory(messages, sum(rows.values()), seconds, peak["jvm"], peak["python"])


@contextmanager
def _sampled(pid: int) -> Iterator[dict[str, int]]:
    """The peak memory of a process and its descendants, by kind."""
    peak, ended = {"jvm": 0, "python": 0}, threading.Event()

    def sample() -> None:
        parent = psutil.Process(pid)
        while not ended.wait(_SAMPLE_SECONDS):
            now = {"jvm": 0, "python": 0}
            with suppress(psutil.NoSuchProcess):
                for process in (parent, *parent.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                        kind = "jvm" if process.name() == "java" else "python"
                        now[kind] += process.memory_full_info().pss
            for kind, size in now.items():
                peak[kind] = max(peak[kind], size)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
