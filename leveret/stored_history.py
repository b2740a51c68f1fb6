"""Lets the HTTP API read stored history, without the two front ends importing each other.

A process of its own reads it (`leveret.spark_sink.arrow.history_process`), because reading needs
the interpreter for seconds, and clients of the broker would wait for it. The first request
starts the process. It serves all requests, one thread for each, and ends after `IDLE_SECONDS`
without one. A process that was killed is replaced by the next request.

Runs on the loop's thread; only starting and reaping the process use others. Processes are started
with `subprocess`, because asyncio's differ between event loops and between versions of Python, and
the loop may not be on the main thread. After a crash of the broker the process ends by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from leveret.spark_sink.arrow.history_process import HEADER, Frame

IDLE_SECONDS = 30.0
"""Longer than the pauses between the requests of one Spark job: a start takes half a second."""
MAX_REQUESTS = 64
"""How many are answered at a time; each needs a few times 8 MiB in the process. Others wait."""
END_SECONDS = 5.0
_PART_BYTES = 1 << 18
_COMMAND = (sys.executable, "-P", "-m", "leveret.spark_sink.arrow.history_process")

log = logging.getLogger("leveret.history")


class HistoryProcess:
    """A running process. `ended` is done when it has ended and is reaped."""

    def __init__(
        self, process: subprocess.Popen[bytes], requests: socket.socket, output: socket.socket
    ) -> None:
        self.pid = process.pid
        self.answers = 0
        """How many requests it is answering."""
        self._process = process
        self._requests = requests
        self.ended = asyncio.create_task(self._log_until_end(output))

    def __repr__(self) -> str:
        return f"<HistoryProcess {self.pid} answers={self.answers}>"

    @classmethod
    async def start(cls) -> HistoryProcess:
        return cls(*await asyncio.to_thread(_start_process))

    def pass_socket(self, connection: socket.socket) -> None:
        socket.send_fds(self._requests, [b"\0"], [connection.fileno()])

    async def end(self) -> None:
        self._requests.close()
        await asyncio.wait([self.ended], timeout=END_SECONDS)
        if not self.ended.done():
            self._process.kill()
            await self.ended

    async def why_ended(self) -> str:
        """For the log, after a connection to the process has ended."""
        await asyncio.wait([self.ended], timeout=END_SECONDS)
        return f"the process that reads history {_cause_of_end(self._process.returncode)}"

    async def _log_until_end(self, output: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=output)
        rest = b""
        with suppress(ConnectionError):  # on some systems the end of a process that was killed
            while text := await reader.read(_PART_BYTES):
                *lines, rest = (rest + text).split(b"\n")
                _log_output(lines)
        writer.close()
        _log_output([rest] if rest else [])
        await asyncio.to_thread(self._process.wait)
        self._requests.close()
        code = self._process.returncode
        if code and not self.answers:  # else those requests say it
            log.warning("the process that reads history %s", _cause_of_end(code))


def _log_output(lines: Iterable[bytes]) -> None:
    for line in lines:
        log.warning("the process that reads history: %s", line.decode("utf-8", "replace"))


def _cause_of_end(code: int | None) -> str:
    if code is None:
        return "closed a connection"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _start_process() -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket]:
    """The process and our ends of its standard input and of its output. Blocks for some time."""
    requests, their_requests = socket.socketpair()
    output, their_output = socket.socketpair()
    try:
        with their_requests, their_output:
            process = subprocess.Popen(  # noqa: S603 - this interpreter and our own module
                _COMMAND,
                stdin=their_requests.fileno(),
                stdout=their_output.fileno(),
                stderr=their_output.fileno(),
                # It imports what the broker would, also in a program that has changed its path.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                process_group=0,  # Ctrl-C in a terminal is for the broker
            )
    except BaseException:
        requests.close()
        output.close()
        raise
    requests.setblocking(False)
    return process, requests, output


class Answer:
    """The parts of an answer as they arrive, an async iterator; it must be closed.

    Raises ValueError with a sentence for the client, ImportError if a module is not installed, and
    RuntimeError if anything else keeps the process from completing the answer.
    """

    def __init__(self, process: HistoryProcess, on_close: Callable[[], None]) -> None:
        self._process = process
        self._on_close = on_close
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._unread = 0
        """Bytes of the current frame."""
        self._is_complete = self._is_closed = False
        process.answers += 1

    async def begin(self, request: Mapping[str, Any]) -> None:
        """Send the request, and wait for the answer to begin."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._reader, self._writer = await asyncio.open_unix_connection(
                sock=ours, limit=_PART_BYTES
            )
            try:
                self._process.pass_socket(theirs)
            except OSError as error:
                raise RuntimeError(await self._process.why_ended()) from error
        self._writer.write(json.dumps(request).encode() + b"\n")
        await self._begin_frame()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._writer is not None:
            self._writer.transport.abort()
        self._process.answers -= 1
        self._on_close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._unread:
            if self._is_complete:
                raise StopAsyncIteration
            await self._begin_frame()
        return await self._receive(min(self._unread, _PART_BYTES))

    async def _begin_frame(self) -> None:
        self._unread = HEADER.size
        kind, size = HEADER.unpack(await self._receive_all())
        self._unread = size
        if kind == Frame.DATA:
            return
        self._is_complete = True
        text = (await self._receive_all()).decode()
        if kind == Frame.REFUSED:
            raise ValueError(text)
        if kind == Frame.MODULE_MISSING:
            raise ImportError(text)
        if kind == Frame.FAILED:
            raise RuntimeError(f"the process that reads history reported: {text}")

    async def _receive_all(self) -> bytes:
        """The rest of the frame."""
        parts = []
        while self._unread:
            parts.append(await self._receive(self._unread))
        return b"".join(parts)

    async def _receive(self, limit: int) -> bytes:
        try:
            part = await self._reader.read(limit)
        except ConnectionError:
            part = b""
        if not part:
            raise RuntimeError(await self._process.why_ended())
        self._unread -= len(part)
        return part


class StoredHistory:
    """Starts the process when it is needed, and ends it."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self._start: asyncio.Task[HistoryProcess] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def process(self) -> HistoryProcess | None:
        """The process that answers requests, unless it is only being started."""
        start = self._start
        if start is None or not start.done() or start.cancelled() or start.exception() is not None:
            return None
        return start.result()

    async def ranges(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> dict[str, Any]:
        """Answer `/api/history/ranges` from the data directory."""
        answer = await self._ask("ranges", data_dir, params, vhosts)
        try:
            ranges: dict[str, Any] = json.loads(b"".join([part async for part in answer]))
        finally:
            answer.close()
        return ranges

    async def export(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> Answer:
        """Answer `/api/history/export` from the data directory."""
        return await self._ask("export", data_dir, params, vhosts)

    async def close(self) -> None:
        """End the process and wait for its end."""
        self._stop_expiry()
        if self._start is not None:
            await asyncio.wait([self._start])
        if self.process is not None:
            await self.process.end()
        await asyncio.gather(*self._ending)

    async def _ask(
        self, path: str, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> Answer:
        answer = Answer(await self._take_process(), self._release_process)
        try:
            await answer.begin(
                {
                    "path": path,
                    "data_dir": str(data_dir),
                    "params": dict(params),
                    "vhosts": None if vhosts is None else sorted(vhosts),
                }
            )
        except BaseException:
            answer.close()
            raise
        return answer

    async def _take_process(self) -> HistoryProcess:
        await self._slots.acquire()
        try:
            return await self._running_process()
        except BaseException:
            self._release_process()
            raise

    async def _running_process(self) -> HistoryProcess:
        start = self._start
        if start is None or (start.done() and (self.process is None or self.process.ended.done())):
            self._start = start = asyncio.create_task(HistoryProcess.start())
        # A client that disconnects must not cancel it: others may wait for it.
        return await asyncio.shield(start)

    def _release_process(self) -> None:
        self._slots.release()
        self._stop_expiry()
        self._expiry = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._expire)

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self) -> None:
        """The end of each answer sets the timer again."""
        process = self.process
        if process is None or process.answers:
            return
        self._start = None
        ending = asyncio.create_task(process.end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
