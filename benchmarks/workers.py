"""The worker processes of one run: starts them together and collects their reports.

A role is a picklable value with `prepare` (connect, build frames) and `work` (the hot loop). The
parent creates the shared counters; each consumer writes only its own slot, the parent writes only
`expected`. A worker that fails sends its error instead of a report, and the pool is then killed by
process id, so that no run leaves processes behind.
"""

import contextlib
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
_READY_TIMEOUT = 60.0


class RunError(Exception):
    """A run lost messages, got broken frames or an AMQP error, or stalled."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one worker. Times are CLOCK_MONOTONIC, which all processes share."""

    count: int
    started: float
    finished: float
    latencies: tuple[float, ...] = ()
    cpu: float = 0.0

    @property
    def busy(self) -> float:
        """The share of one core that the worker used."""
        return self.cpu / max(self.finished - self.started, 1e-9)


class DeliveryCounts:
    """Deliveries so far per consumer, and the expected total (-1: not known yet)."""

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

    def work(self, counts: DeliveryCounts) -> Report: ...


@dataclass(slots=True, eq=False)
class Worker:
    process: BaseProcess
    pipe: Pipe
    role: Role
    report: Report | None = None


class WorkerPool:
    """The workers of one run; a context manager."""

    def __init__(self, roles: Sequence[Role], *, consumers: int = 0) -> None:
        self.counts = DeliveryCounts(consumers)
        self._workers = [self._start_worker(role) for role in roles]

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.join(1.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def go(self) -> None:
        """Wait until all workers are ready, then start all of them."""
        self.ready()
        self.start()

    def ready(self) -> None:
        for worker in self._workers:
            self._receive(worker, _READY_TIMEOUT)

    def start(self) -> None:
        for worker in self._workers:
            worker.pipe.send(None)

    def reports(self, selected: slice, within: float) -> list[Report]:
        """The reports of some workers; an error of any worker raises RunError."""
        workers = self._workers[selected]
        deadline = time.monotonic() + within
        while any(worker.report is None for worker in workers):
            working = {w.pipe: w for w in self._workers if w.report is None}
            ready = wait(list(working), max(deadline - time.monotonic(), 0))
            if not ready:
                raise RunError(f"no report within {within:.0f} s")
            for worker in [worker for pipe, worker in working.items() if pipe in ready]:
                worker.report = self._receive(worker, 1.0)
        return [worker.report for worker in workers if worker.report]

    def _start_worker(self, role: Role) -> Worker:
        parent_end, worker_end = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_main, args=(role, worker_end, self.counts), daemon=True)
        process.start()
        worker_end.close()
        return Worker(process, parent_end, role)

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


def _main(role: Role, pipe: Pipe, counts: DeliveryCounts) -> None:
    gc.disable()
    try:
        role.prepare()
        pipe.send(None)
        pipe.recv()
        before = _cpu_seconds()
        report = role.work(counts)
        cpu = _cpu_seconds() - before
        pipe.send(Report(report.count, report.started, report.finished, report.latencies, cpu))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # noqa: BLE001 - every error is sent to the parent
        with contextlib.suppress(BrokenPipeError):  # which may have gone after another error
            pipe.send(f"{type(role).__name__}: {type(error).__name__}: {error}")


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
