"""Publishing at a fixed rate while an export reads the same broker, and without an export.

The figure is the 99th percentile of the time from when a persistent message was due to its confirm.
Messages are due at fixed times, whatever happened to earlier ones, so a stall of the broker counts
for every message that had to wait. How late messages were sent is measured as well: that part of
the time is caused by the generator and the machine.

Windows with and without an export alternate, after a warm-up window. In a window with an export,
exports run one after another for the whole time, each as a `leveret export` process with its own
JVM.
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

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Address, Connection, RefusedError
from benchmarks.counting import ConfirmCounter
from benchmarks.figures import percentile
from benchmarks.frames import delivery_mode, publish
from benchmarks.roles import STALL_SECONDS, Consumer
from benchmarks.topology import Topology
from benchmarks.workers import DeliveryCounts, Report, RunError, WorkerPool

RATE = 2000
_QUEUE = "spark.beside"
_WARM_UP = 2000
_WARM_UP_SECONDS = 5.0
_TIMEOUT = 120.0


@dataclass(slots=True)
class ConfirmedPublisher:
    """Publishes persistent messages at a fixed rate; records when each was sent and confirmed.

    `latencies` of its report are the times from due to confirmed, followed by as many times from
    due to sent.
    """

    address: Address
    queue: str
    rate: float
    seconds: float
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)
    _started: float = field(init=False, repr=False, default=0.0)
    _send_times: list[float] = field(init=False, repr=False, default_factory=list)
    _confirm_times: list[float] = field(init=False, repr=False, default_factory=list)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        self._connection.call(commands.Confirm.Select())

    def work(self, counts: DeliveryCounts) -> Report:
        message = publish("", self.queue, delivery_mode(persistent=True), bytes(self.body_size))
        sock, ledger = self._connection.sock, ConfirmCounter()
        sock.settimeout(None)
        count = int(self.rate * self.seconds)
        self._started = last = time.monotonic()
        while len(self._confirm_times) < count:
            sent, now = len(self._send_times), time.monotonic()
            due = min(int((now - self._started) * self.rate) + 1, count)
            if due > sent:
                sock.sendall(message * (due - sent))
                self._send_times += self._since(sent, due)
            now = time.monotonic()
            pause = max(self._due(due) - now, 0.0) if due < count else 1.0
            if select.select([sock], [], [], pause)[0]:
                confirmed = ledger.feed(_receive(sock))
                self._confirm_times += self._since(len(self._confirm_times), confirmed)
                last = time.monotonic()
            elif now - last > STALL_SECONDS:
                raise RunError(f"{count - len(self._confirm_times):,} confirms are missing")
        self._connection.close()
        latencies = (*self._confirm_times[_WARM_UP:], *self._send_times[_WARM_UP:])
        return Report(count, self._started, last, latencies)

    def _due(self, number: int) -> float:
        return self._started + number / self.rate

    def _since(self, first: int, end: int) -> list[float]:
        """The time since each of these messages was due."""
        now = time.monotonic()
        return [now - self._due(number) for number in range(first, end)]


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    if not data:
        raise RefusedError("the broker closed the connection")
    return data


@dataclass(frozen=True, slots=True)
class Window:
    """Milliseconds from due to confirmed; `lag` is the 99th percentile from due to sent."""

    p50: float
    p99: float
    longest: float
    lag: float


@dataclass(frozen=True, slots=True)
class ExportImpact:
    """The windows without and with exports, and the number of exports that finished."""

    without_export: list[Window]
    with_export: list[Window]
    exports: int


def measure(broker: RunningBroker, scratch: Path, rounds: int, seconds: float) -> ExportImpact:
    topology = Topology((_QUEUE,), durable=True)
    topology.declare(broker.address)
    windows: dict[bool, list[Window]] = {False: [], True: []}
    exports = 0
    os.sync()
    _window(broker, _WARM_UP_SECONDS)
    for number in range(rounds):
        for with_export in (False, True) if number % 2 == 0 else (True, False):
            if not with_export:
                windows[False].append(_window(broker, seconds))
                continue
            with _exporting(broker.directory / "data", scratch) as exit_codes:
                windows[True].append(_window(broker, seconds))
            exports += len(exit_codes)
    topology.delete(broker.address)
    return ExportImpact(windows[False], windows[True], exports)


def _window(broker: RunningBroker, seconds: float) -> Window:
    publisher = ConfirmedPublisher(broker.address, _QUEUE, RATE, seconds)
    consumer = Consumer(broker.address, (_QUEUE,), 0, ack_every=100)
    with WorkerPool([publisher, consumer], consumers=1) as pool:
        pool.go()
        (sent,) = pool.reports(slice(1), seconds + _TIMEOUT)
        pool.counts.expect(sent.count)
        pool.reports(slice(1, None), _TIMEOUT)
    half = len(sent.latencies) // 2
    confirms = [1000 * seconds for seconds in sent.latencies[:half]]
    sends = [1000 * seconds for seconds in sent.latencies[half:]]
    return Window(
        percentile(confirms, 50), percentile(confirms, 99), max(confirms), percentile(sends, 99)
    )


@contextlib.contextmanager
def _exporting(data_dir: Path, scratch: Path) -> Iterator[list[int]]:
    """Run exports one after another until the end of the block; yields their exit codes."""
    done, exit_codes = threading.Event(), list[int]()
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
                exit_codes.append(code)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield exit_codes
    finally:
        done.set()
        for process in running:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        thread.join()
        shutil.rmtree(scratch / "beside", ignore_errors=True)
    if any(exit_codes):
        raise RunError("an export failed during the load")
