"""An export of a long history: how much memory it takes, and how that grows with the history.

The broker is filled to each of the sizes in turn; after each one `leveret export` writes the
history to a directory of its own, and meanwhile the memory of its processes is looked at twice a
second: resident pages, where those that Python processes share are shared out among them.
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
from benchmarks.crew import RunError
from benchmarks.spark import history

# The default keeps 1 GiB, less than five million messages need.
_ROOM = {"LEVERET_HISTORY_MAX_BYTES": "100GiB"}
_EVERY = 0.5
_KINDS_OF_EVENTS = 4


@dataclass(frozen=True, slots=True)
class Large:
    """One export. Memory in bytes at its most: `jvm`, and all Python processes together."""

    messages: int
    rows: int
    seconds: float
    jvm: int
    python: int


def measure(sizes: Sequence[int], scratch: Path, say: Callable[[str], None]) -> list[Large]:
    found, there = [], 0
    broker = start(Kind.LEVERET, _ROOM)
    try:
        for size in sizes:
            say(f"spark: filling a broker with {size:,} messages")
            history.send_messages(broker, size - there)
            there = size
            say(f"spark: exporting the history of {size:,} messages")
            found.append(_export(broker.directory / "data", scratch / f"large-{size}", size))
    finally:
        broker.stop()
    return found


def _export(data_dir: Path, out: Path, messages: int) -> Large:
    command = [sys.executable, "-m", "leveret", "export", "--data-dir", str(data_dir)]
    command += ["--to", str(out), "--table", "messages,events"]
    began = time.monotonic()
    process = subprocess.Popen(
        command, env={**os.environ, "LEVERET_SPARK_NICE": "0"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with _watched(process.pid) as most:
        code = process.wait()
    seconds = time.monotonic() - began
    if code:
        raise RunError(f"the export of {messages:,} messages ended with {code}")
    tables = json.loads((out / "manifest.json").read_text())["tables"]
    rows = {name: int(table["rows"]) for name, table in tables.items()}
    if rows != {"messages": messages, "events": messages * _KINDS_OF_EVENTS}:
        raise RunError(f"{messages:,} messages were sent, but {rows} exported")
    shutil.rmtree(out)
    return Large(messages, sum(rows.values()), seconds, most["jvm"], most["python"])


@contextmanager
def _watched(pid: int) -> Iterator[dict[str, int]]:
    """The most memory that a process and its descendants had at a time, by kind."""
    most, ended = {"jvm": 0, "python": 0}, threading.Event()

    def look() -> None:
        parent = psutil.Process(pid)
        while not ended.wait(_EVERY):
            now = {"jvm": 0, "python": 0}
            with suppress(psutil.NoSuchProcess):
                for one in (parent, *parent.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                        kind = "jvm" if one.name() == "java" else "python"
                        now[kind] += one.memory_full_info().pss
            for kind, size in now.items():
                most[kind] = max(most[kind], size)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()
