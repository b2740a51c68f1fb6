"""A broker in a process of its own, that can be killed and started again on the same data."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path


class BrokerProcess:
    def __init__(self, data_dir: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self._options = ("--data-dir", str(data_dir), *options)
        self._env = {**os.environ, "LEVERET_HTTP_ENABLED": "false", **(env or {})}
        self._process: asyncio.subprocess.Process | None = None
        self.address = ("127.0.0.1", 0)
        self.start_seconds = 0.0
        self.prefix: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        began = time.monotonic()
        command = (*self.prefix, sys.executable, "-m", "leveret", "serve", "--amqp-port", "0")
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *self._options,
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = (await asyncio.wait_for(self._process.stdout.readline(), 60)).decode()
        if "amqp=" not in line:
            raise RuntimeError(f"the broker did not start: {await self._said()}")
        host, _, port = line.split("amqp=")[1].split()[0].rpartition(":")
        self.address = (host, int(port))
        self.start_seconds = time.monotonic() - began

    async def _said(self) -> str:
        assert self._process is not None and self._process.stderr is not None
        return (await self._process.stderr.read()).decode()[-2000:]

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        return await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        _, stderr = await self._process.communicate()
        for line in stderr.decode().splitlines():
            if "Traceback" in line:
                raise AssertionError(f"the broker had an unexpected error:\n{stderr.decode()}")
        return self._process.returncode or 0

    async def wait(self, seconds: float) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), seconds)
