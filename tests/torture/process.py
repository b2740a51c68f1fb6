"""A broker in a process of its own, that can be killed and started again on the same data."""

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
ALARMING = ("Traceback", "Task was destroyed", "never retrieved", "was never awaited")
"""What no broker may say at any time."""
LEVERET = ("-m", "leveret")
SWEEPING = (
    "-c",
    "import sys, leveret.broker.upkeep as upkeep; upkeep.SWEEP_SECONDS = 0.1;"
    "from leveret.cli import main; sys.exit(main())",
)
"""The same broker, but it trims its history all the time."""


_RUNNING: set[asyncio.subprocess.Process] = set()


def end_leftovers() -> None:
    """Kill what a failed run left behind; each run calls it when it ends."""
    while _RUNNING:
        process = _RUNNING.pop()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()


def end_of(file: int, octets: int) -> str:
    """Read in place: who writes into the file shares its position with us."""
    start = max(0, os.fstat(file).st_size - octets)
    return os.pread(file, octets, start).decode(errors="replace")


def alarm_in(file: int, portion: int = 1 << 20) -> str:
    """What stands around the first alarming words of a log, however long it is; empty if none."""
    overlap = max(map(len, ALARMING))
    at = 0
    while octets := os.pread(file, portion + overlap, at):
        found = [octets.find(words.encode()) for words in ALARMING]
        if places := [place for place in found if place >= 0]:
            start = max(0, at + min(places) - 1_000)
            return os.pread(file, 10_000, start).decode(errors="replace")
        at += portion
    return ""


class BrokerProcess:
    def __init__(self, data_dir: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self._options = ("--data-dir", str(data_dir), *options)
        self.settings: tuple[str, ...] = ()
        """`key=value`, for the next start."""
        self.program: tuple[str, ...] = LEVERET
        self._env = {**os.environ, "LEVERET_HTTP_ENABLED": "false", **(env or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None
        self._last_words = ""
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
        """Of the broker itself, also when it runs under a tracer."""
        assert self._process is not None
        if not self.prefix:
            return self._process.pid
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        found: list[str] = []
        with suppress(FileNotFoundError, ProcessLookupError):  # the tracer has just ended
            found = children.read_text(encoding="ascii").split()
        return int(found[0]) if found else self._process.pid

    async def launch(self) -> str:
        """Start the process; its ready line, or nothing when it gave up."""
        command = (*self.prefix, sys.executable, *self.program, "serve", "--amqp-port", "0")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe nobody reads would fill up
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
            raise RuntimeError(f"the broker did not start: {self.said()}")
        host, _, port = line.split("amqp=")[1].split()[0].rpartition(":")
        self.address = (host, int(port))
        self.http = line.split("http=")[1].split()[0]
        self.start_seconds = time.monotonic() - began
        self.start_processor_seconds = self.processor_seconds()

    def said(self, octets: int = 100_000) -> str:
        """The end of its log so far."""
        if self._log is not None:
            self._last_words = end_of(self._log.fileno(), octets)
        return self._last_words

    def _close_log(self) -> str:
        """The first alarming thing in all of it, with what stands around it."""
        self.said()
        alarm = ""
        if self._log is not None:
            alarm = alarm_in(self._log.fileno())
            self._log.close()
            self._log = None
        return alarm

    def memory(self, field: str = "VmHWM") -> float:
        """Resident memory in MB: the most so far, or now with `VmRSS`."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith(field))
        return int(line.split()[1]) / 1024

    def forget_peak(self) -> None:
        """The most so far is what it is now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")

    def processor_seconds(self) -> float:
        """What it has used so far, whatever else the machine had to do."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        return await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, how)
        await self._process.communicate()
        _RUNNING.discard(self._process)
        alarm = self._close_log()
        if alarm:
            raise AssertionError(f"the broker had an unexpected error:\n{alarm}")
        return self._process.returncode or 0

    async def wait(self, seconds: float) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), seconds)
