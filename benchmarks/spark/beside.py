"""Publishing at a steady rate while an export reads the same broker, and without one.

The figure is the 99th percentile of the time from the moment a persistent message was due to its
confirm. Windows with and without an export take turns. With it, exports run one after another for
the whole window, each with a JVM of its own, as `leveret export` runs them.
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
_WARM_UP = 200
_WITHIN = 120.0


@dataclass(slots=True)
class ConfirmedPace:
    """Publishes persistent messages at a fixed rate and notes when each is confirmed."""

    address: Address
    queue: str
    rate: float
    seconds: float
    body_size: int = 100
    _connection: Connection = field(init=False, repr=False)
    _dues: list[float] = field(init=False, repr=False, default_factory=list)
    _taken: list[float] = field(init=False, repr=False, default_factory=list)

    def prepare(self) -> None:
        self._connection = Connection(self.address)
        self._connection.call(commands.Confirm.Select())

    def work(self, tally: Tally) -> Report:
        message = publish("", self.queue, delivery_mode(persistent=True), bytes(self.body_size))
        sock, ledger = self._connection.sock, ConfirmLedger()
        sock.setblocking(False)
        count = int(self.rate * self.seconds)
        started = last = time.monotonic()
        while len(self._taken) < count:
            sent, now = len(self._dues), time.monotonic()
            due = started + sent / self.rate
            if sent < count and now >= due:
                self._dues.append(due)
                sock.setblocking(True)
                sock.sendall(message)
                sock.setblocking(False)
                continue
            pause = max(due - now, 0.0) if sent < count else 1.0
            if select.select([sock], [], [], pause)[0]:
                last = self._note(ledger.feed(_received(sock)))
            elif now - last > STALL:
                raise RunError(f"{count - len(self._taken):,} confirms are missing")
        sock.setblocking(True)
        self._connection.close()
        return Report(count, started, last, tuple(self._taken[_WARM_UP:]))

    def _note(self, confirmed: int) -> float:
        now = time.monotonic()
        self._taken += [now - due for due in self._dues[len(self._taken) : confirmed]]
        return now


def _received(sock: socket.socket) -> bytes:
    data: bytes = sock.recv(1 << 16)
    if not data:
        raise RefusedError("the broker closed the connection")
    return data


@dataclass(frozen=True, slots=True)
class Beside:
    """The 99th percentiles of all windows, in milliseconds, and how many exports ended."""

    alone: list[float]
    beside: list[float]
    exports: int


def measure(broker: Running, scratch: Path, rounds: int, seconds: float) -> Beside:
    topology = Topology((_QUEUE,), durable=True)
    topology.declare(broker.address)
    found: dict[bool, list[float]] = {False: [], True: []}
    exports = 0
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


def _window(broker: Running, seconds: float) -> float:
    publisher = ConfirmedPace(broker.address, _QUEUE, RATE, seconds)
    consumer = Consumer(broker.address, (_QUEUE,), 0, ack_every=100)
    with Crew([publisher, consumer], consumers=1) as crew:
        crew.go()
        (sent,) = crew.reports(slice(1), seconds + _WITHIN)
        crew.tally.expect(sent.count)
        crew.reports(slice(1, None), _WITHIN)
    return percentile(sent.latencies, 99) * 1000


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
