"""The worker processes of one run: start them, let them go at once, collect their reports.

A role is a picklable value with `prepare` (connect, build frames) and `work` (the hot loop). The
parent owns the shared counters' life; each consumer writes only its own slot, the parent writes
only `expected`. A worker that fails sends its error instead of a report, and the crew is killed
by process id, so no run leaves processes behind.
"""

import gc
import multiprocessing
import resource
import time
from collections.abc import Sequence
from ctypes import c_longlong
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["benchmarks.roles"])
_READY_WITHIN = 60.0


class RunError(Exception):
    """A run lost messages, broke framing, was refused or stalled."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker saw. Times are CLOCK_MONOTONIC, one clock for all processes."""

    count: int
    started: float
    finished: float
    latencies: tuple[float, ...] = ()
    cpu: float = 0.0

    @property
    def busy(self) -> float:
        """The share of one core that the worker needed."""
        return self.cpu / max(self.finished - self.started, 1e-9)


class Tally:
    """Deliveries so far per consumer, and how many there will be (-1: not known yet)."""

    def __init__(self, consumers: int) -> None:
        self._cells: Any = _CONTEXT.RawArray(c_longlong, consumers + 1)
        self._cells[-1] = -1

    def put(self, slot: int, count: int) -> None:
        self._cells[slot] = count

    def expect(self, total: int) -> None:
        self._cells[-1] = total

    @property
    def expected(self) -> int:
        return int(self._cells[-1])

    @property
    def is_complete(self) -> bool:
        expected = self._cells[-1]
        return bool(expected >= 0 and sum(self._cells[:-1]) >= expected)


class Role(Protocol):
    def prepare(self) -> None: ...

    def work(self, tally: Tally) -> Report: ...


@dataclass(slots=True, eq=False)
class Worker:
    process: BaseProcess
    pipe: Pipe
    role: Role
    report: Report | None = None


class Crew:
    """Workers of one run; use as a context manager."""

    def __init__(self, roles: Sequence[Role], *, consumers: int = 0) -> None:
        self.tally = Tally(consumers)
        self._workers = [self._hire(role) for role in roles]

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.join(1.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def go(self) -> None:
        """Wait until all are ready, then start all."""
        self.ready()
        self.start()

    def ready(self) -> None:
        for worker in self._workers:
            self._receive(worker, _READY_WITHIN)

    def start(self) -> None:
        for worker in self._workers:
            worker.pipe.send(None)

    def reports(self, which: slice, within: float) -> list[Report]:
        """The reports of some of the workers; the error of any worker ends the run."""
        wanted = self._workers[which]
        deadline = time.monotonic() + within
        while any(worker.report is None for worker in wanted):
            working = {w.pipe: w for w in self._workers if w.report is None}
            ready = wait(list(working), max(deadline - time.monotonic(), 0))
            if not ready:
                raise RunError(f"no report within {within:.0f} s")
            for worker in [worker for pipe, worker in working.items() if pipe in ready]:
                worker.report = self._receive(worker, 1.0)
        return [worker.report for worker in wanted if worker.report]

    def _hire(self, role: Role) -> Worker:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_main, args=(role, theirs, self.tally), daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours, role)

    @staticmethod
    def _receive(worker: Worker, within: float) -> Any:
        if not worker.pipe.poll(within):
            raise RunError(f"{type(worker.role).__name__} was not ready within {within:.0f} s")
        try:
            message = worker.pipe.recv()
        except EOFError:
            raise RunError(f"{type(worker.role).__name__} died") from None
        if isinstance(message, str):
            raise RunError(message)
        return message


def _main(role: Role, pipe: Pipe, tally: Tally) -> None:
    gc.disable()
    try:
        role.prepare()
        pipe.send(None)
        pipe.recv()
        before = _cpu_seconds()
        report = role.work(tally)
        cpu = _cpu_seconds() - before
        pipe.send(Report(report.count, report.started, report.finished, report.latencies, cpu))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # noqa: BLE001 - whatever it was, the parent must hear of it
        pipe.send(f"{type(role).__name__}: {type(error).__name__}: {error}")


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
