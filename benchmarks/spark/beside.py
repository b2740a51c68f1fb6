"""Publishing at a steady rate while an export reads the same broker, and without one.

The figure is the 99th percentile of the time from the moment a persistent message was due to its
confirm. Messages are due at fixed times whatever became of the ones before them, so a broker that
stalls is charged for every message that had to wait. How late messages were sent is measured as
well: that share of the time is the generator's and the machine's.

Windows with and without an export take turns, after one that warms everything up. With it, exports
run one after another for the whole window, each with a JVM of its own, as `leveret export` runs
them.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pamqp import commands

from benchmarks.brokers import Running
from benchmarks.connection import Address, Connection, RefusedError
from benchmarks.counting import ConfirmLedger
from benchmarks.crew import Crew, Report, RunError, Tally
from benchmarks.figures import percentile
from benchmarks.frames import delivery_mode, publish
from benchmarks.roles import STALL, Consumer
from benchmarks.topology import Topology

RATE = 2000
_QUEUE = "spark.beside"
_WARM_UP = 2000
_WARM_UP_SECONDS = 5.0
_WITHIN = 120.0


@dataclass(slots=True)
class ConfirmedPace:
    """Publishes persistent messages at a fixed rate and notes when each is sent and confirmed.

    Its report has the times from due to confirmed and then, as many, those from due to sent.
    """

    address: Address
    queue: str
    rate: float
    seconds: float
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)
    _started: float = field(init=False, repr=False, default=0.0)
    _lags: list[float] = field(init=False, repr=False, default_factory=list)
    _taken: list[float] = field(init=False, repr=False, default_factory=list)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        self._connection.call(commands.Confirm.Select())

    def work(self, tally: Tally) -> Report:
        message = publish("", self.queue, delivery_mode(persistent=True), bytes(self.body_size))
        sock, ledger = self._connection.sock, ConfirmLedger()
        sock.settimeout(None)
        count = int(self.rate * self.seconds)
        self._started = last = time.monotonic()
        while len(self._taken) < count:
            sent, now = len(self._lags), time.monotonic()
            due = min(int((now - self._started) * self.rate) + 1, count)
            if due > sent:
                sock.sendall(message * (due - sent))
                self._lags += self._since(sent, due)
            now = time.monotonic()
            pause = max(self._due(due) - now, 0.0) if due < count else 1.0
            if select.select([sock], [], [], pause)[0]:
                confirmed = ledger.feed(_received(sock))
                self._taken += self._since(len(self._taken), confirmed)
                last = time.monotonic()
            elif now - last > STALL:
                raise RunError(f"{count - len(self._taken):,} confirms are missing")
        self._connection.close()
        noted = (*self._taken[_WARM_UP:], *self._lags[_WARM_UP:])
        return Report(count, self._started, last, noted)

    def _due(self, number: int) -> float:
        return self._started + number / self.rate

    def _since(self, first: int, end: int) -> list[float]:
        """How long ago each of these messages was due."""
        now = time.monotonic()
        return [now - self._due(number) for number in range(first, end)]


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    if not data:
        raise RefusedError("the broker closed the connection")
    return data


@dataclass(frozen=True, slots=True)
class Window:
    """Milliseconds from due to confirmed; `lag` is the 99th percentile from due to sent."""

    p50: float
    p99: float
    most: float
    lag: float


@dataclass(frozen=True, slots=True)
class Beside:
    """All windows, and how many exports ended while they lasted."""

    alone: list[Window]
    beside: list[Window]
    exports: int


def measure(broker: Running, scratch: Path, rounds: int, seconds: float) -> Beside:
    topology = Topology((_QUEUE,), durable=True)
    topology.declare(broker.address)
    found: dict[bool, list[Window]] = {False: [], True: []}
    exports = 0
    os.sync()
    _window(broker, _WARM_UP_SECONDS)
    for number in range(rounds):
        for with_export in (False, True) if number % 2 == 0 else (True, False):
            if not with_export:
                found[False].append(_window(broker, seconds))
                continue
            with _exporting(broker.directory / "data", scratch) as ended:
                found[True].append(_window(broker, seconds))
            exports += len(ended)
    topology.delete(broker.address)
    return Beside(found[False], found[True], exports)


def _window(broker: Running, seconds: float) -> Window:
    publisher = ConfirmedPace(broker.address, _QUEUE, RATE, seconds)
    consumer = Consumer(broker.address, (_QUEUE,), 0, ack_every=100)
    with Crew([publisher, consumer], consumers=1) as crew:
        crew.go()
        (sent,) = crew.reports(slice(1), seconds + _WITHIN)
        crew.tally.expect(sent.count)
        crew.reports(slice(1, None), _WITHIN)
    half = len(sent.latencies) // 2
    taken = [1000 * each for each in sent.latencies[:half]]
    lags = [1000 * each for each in sent.latencies[half:]]
    return Window(percentile(taken, 50), percentile(taken, 99), max(taken), percentile(lags, 99))


@contextlib.contextmanager
def _exporting(data_dir: Path, scratch: Path) -> Iterator[list[int]]:
    """Exports one after another until the end of the block; yields the codes they ended with."""
    done, ended = threading.Event(), list[int]()
    running: list[subprocess.Popen[bytes]] = []

    def work() -> None:
        while not done.is_set():
            out = scratch / "beside"
            shutil.rmtree(out, ignore_errors=True)
            command = [
                sys.executable,
                "-m",
                "leveret",
                "export",
                "--data-dir",
                str(data_dir),
            ]
            command += ["--to", str(out), "--table", "messages,events,logs"]
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            running.append(process)
            code = process.wait()
            if not done.is_set():
                ended.append(code)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ended
    finally:
        done.set()
        for process in running:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        thread.join()
        shutil.rmtree(scratch / "beside", ignore_errors=True)
    if any(ended):
        raise RunError("an export beside the load failed")
