"""A broker in its own process, which can be killed and started again on the same data."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

START_SECONDS = 60
FORBIDDEN_LOG_TEXTS = ("Traceback", "Task was destroyed", "never retrieved", "was never awaited")
"""Texts that no broker may ever log."""
LEVERET = ("-m", "leveret")
TRIMMING_HISTORY = (
    "-c",
    "import sys; from leveret.broker.runtime import history_retention as retention;"
    "retention.INTERVAL_SECONDS = 0.1;"
    "from leveret.cli import main; sys.exit(main())",
)
"""Runs the broker with a history that is trimmed all the time."""

USUAL_IMPORT_SECONDS = 0.5
_RUNNING: set[asyncio.subprocess.Process] = set()


def kill_leftover_brokers() -> None:
    """Kill the brokers that a failed run left behind; called at the end of each run."""
    while _RUNNING:
        process = _RUNNING.pop()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()


def read_tail(file: int, count: int) -> str:
    """Read without moving the file position, which the writing process shares."""
    start = max(0, os.fstat(file).st_size - count)
    return os.pread(file, count, start).decode(errors="replace")


def find_forbidden_text(file: int, portion: int = 1 << 20) -> str:
    """Return the log around the first forbidden text, or an empty string."""
    overlap = max(map(len, FORBIDDEN_LOG_TEXTS))
    at = 0
    while data := os.pread(file, portion + overlap, at):
        positions = [data.find(words.encode()) for words in FORBIDDEN_LOG_TEXTS]
        if places := [position for position in positions if position >= 0]:
            start = max(0, at + min(places) - 1_000)
            return os.pread(file, 10_000, start).decode(errors="replace")
        at += portion
    return ""


class BrokerProcess:
    def __init__(self, data_dir: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self._options = ("--data-dir", str(data_dir), *options)
        self.settings: tuple[str, ...] = ()
        """Settings of the next start, as `key=value`."""
        self.program: tuple[str, ...] = LEVERET
        self._env = {**os.environ, "LEVERET_HTTP_ENABLED": "false", **(env or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None
        self._last_log_tail = ""
        self.address = ("127.0.0.1", 0)
        self.http = ""
        self.start_seconds = 0.0
        self.start_processor_seconds = 0.0
        self.prefix: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    @property
    def pid(self) -> int:
        """The process id of the broker itself, also under a tracer."""
        assert self._process is not None
        if not self.prefix:
            return self._process.pid
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        pids: list[str] = []
        with suppress(FileNotFoundError, ProcessLookupError):  # the tracer has just exited
            pids = children.read_text(encoding="ascii").split()
        return int(pids[0]) if pids else self._process.pid

    async def launch(self) -> str:
        """Start the process; return its ready line, or an empty string if it exited."""
        command = (*self.prefix, sys.executable, *self.program, "serve", "--amqp-port", "0")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - an unread pipe would fill up
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *self._options,
            *(word for setting in self.settings for word in ("--set", setting)),
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
        )
        _RUNNING.add(self._process)
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
        return line.decode()

    async def start(self) -> None:
        began = time.monotonic()
        line = await self.launch()
        if "amqp=" not in line:
            await self._end(signal.SIGKILL)
            raise RuntimeError(f"the broker did not start: {self.log_tail()}")
        host, _, port = line.split("amqp=")[1].split()[0].rpartition(":")
        self.address = (host, int(port))
        self.http = line.split("http=")[1].split()[0]
        self.start_seconds = time.monotonic() - began
        self.start_processor_seconds = self.processor_seconds()

    def log_tail(self, count: int = 100_000) -> str:
        """The end of the log so far."""
        if self._log is not None:
            self._last_log_tail = read_tail(self._log.fileno(), count)
        return self._last_log_tail

    def _close_log(self) -> str:
        """Close the log; return its first forbidden text with its surroundings."""
        self.log_tail()
        forbidden_text = ""
        if self._log is not None:
            forbidden_text = find_forbidden_text(self._log.fileno())
            self._log.close()
            self._log = None
        return forbidden_text

    def memory(self, field: str = "VmHWM") -> float:
        """Resident memory in MB: the peak, or the present value with `VmRSS`."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith(field))
        return int(line.split()[1]) / 1024

    def forget_peak(self) -> None:
        """Reset the peak of resident memory to the present value."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")

    def processor_seconds(self) -> float:
        """CPU time used so far, which does not depend on the load of the machine."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        return await self._end(signal.SIGTERM)

    async def _end(self, signal_number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)
        await self._process.communicate()
        _RUNNING.discard(self._process)
        forbidden_text = self._close_log()
        if forbidden_text:
            raise AssertionError(f"the broker had an unexpected error:\n{forbidden_text}")
        return self._process.returncode or 0

    async def wait(self, seconds: float) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), seconds)


async def slowness() -> float:
    """How many times longer than on an idle machine it takes to start a program now.

    Limits in seconds are meant for an idle machine and are multiplied by this.
    """
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import leveret.launch")
    await process.wait()
    return max(1.0, (time.monotonic() - began) / USUAL_IMPORT_SECONDS)
