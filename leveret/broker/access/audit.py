"""The audit log: which user changed what, from where, over AMQP or HTTP, and with what outcome.

Entries are lines of JSON in `audit.log` in the data directory, readable by its owner only. At
`MAX_FILE_BYTES` the file becomes `audit.log.1` and replaces the previous one. The newest entries
are also kept in memory, which is all there is for a broker without files. Publishing and consuming
are not audited, nor are exclusive queues. No entry holds a message body, so none holds a password.
Refused requests are recorded up to a limit per minute and user, and for all unauthenticated
clients together, so that repeated refusals cannot push changes out of the log.

`record` appends to a list on the event loop; a thread writes what has accumulated. A crash loses
what was not yet written, a fraction of a second; a stop writes everything.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("leveret.audit")

FILE_NAME = "audit.log"
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_IN_MEMORY = 10_000
REFUSED_PER_MINUTE = 60
_BLOCK_BYTES = 64 * 1024
_DONE = "done"


@dataclass(frozen=True, slots=True)
class Entry:
    time_ms: int
    user: str
    source: str
    """Address and port over AMQP, address over HTTP."""
    via: str
    vhost: str
    action: str
    target: str
    outcome: str


class AuditLog:
    def __init__(self, folder: Path | None, wall_ms: Callable[[], int]) -> None:
        """Without a folder, entries are kept in memory only."""
        self._path = folder / FILE_NAME if folder is not None else None
        self._wall_ms = wall_ms
        self._recent: deque[Entry] = deque(maxlen=MAX_IN_MEMORY)
        self._unwritten: list[Entry] = []
        self._writing: asyncio.Future[None] | None = None
        self._refused: Counter[str] = Counter()
        self._minute = 0

    def __repr__(self) -> str:
        counts = f"recent={len(self._recent)} unwritten={len(self._unwritten)}"
        return f"<AuditLog {self._path} {counts}>"

    def record(
        self,
        *,
        user: str,
        source: str,
        via: str,
        action: str,
        target: str = "",
        vhost: str = "",
        outcome: str = _DONE,
    ) -> None:
        """`user` is the name of an existing user, or empty for an unauthenticated client."""
        if outcome != _DONE and not self._count_refused(user):
            return
        target = target.encode("utf-8", "replace").decode()  # lone surrogates are not valid JSON
        entry = Entry(self._wall_ms(), user, source, via, vhost, action, target, outcome)
        self._recent.append(entry)
        if self._path is not None:
            self._unwritten.append(entry)
            self._start_writing()

    def _count_refused(self, user: str) -> bool:
        """Count a refused request; False if this minute's limit is exceeded."""
        minute = self._wall_ms() // 60_000
        if minute != self._minute:
            self._minute = minute
            self._refused.clear()
        self._refused[user] += 1
        return self._refused[user] <= REFUSED_PER_MINUTE

    def _start_writing(self) -> None:
        if self._writing is None:
            loop = asyncio.get_running_loop()
            batch, self._unwritten = self._unwritten, []
            self._writing = loop.run_in_executor(None, self._write, batch)
            self._writing.add_done_callback(self._on_written)

    def _on_written(self, done: asyncio.Future[None]) -> None:
        self._writing = None
        if not done.cancelled() and done.exception() is not None:
            log.warning("cannot write the audit log: %s", done.exception())
        if self._unwritten:
            self._start_writing()

    def _write(self, batch: list[Entry]) -> None:
        """Append entries to the file. Runs on a thread, one call at a time."""
        assert self._path is not None
        if self._path.exists() and self._path.stat().st_size >= MAX_FILE_BYTES:
            self._path.replace(self._path.with_suffix(".log.1"))
        lines = "".join(json.dumps(asdict(entry)) + "\n" for entry in batch)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a", encoding="ascii") as file:
            file.write(lines)

    async def newest(self, count: int, matches: Callable[[dict[str, Any]], bool]) -> list[Any]:
        """Return up to `count` matching entries, the newest first."""
        if self._path is None:
            return _first(count, matches, (asdict(entry) for entry in reversed(self._recent)))
        while self._writing is not None:
            await asyncio.wait({self._writing})
        return await asyncio.to_thread(_first, count, matches, _entries_backwards(self._path))

    async def stop(self) -> None:
        while self._writing is not None:
            await asyncio.wait({self._writing})


def _first(
    count: int, matches: Callable[[dict[str, Any]], bool], entries: Iterator[dict[str, Any]]
) -> list[dict[str, Any]]:
    matching: list[dict[str, Any]] = []
    for entry in entries:
        if len(matching) >= count:
            break
        if matches(entry):
            matching.append(entry)
    return matching


def _entries_backwards(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of both files from the last; skips a line truncated by a crash."""
    for part in (path, path.with_suffix(".log.1")):
        if not part.exists():
            continue
        with part.open("rb") as file:
            for line in _lines_backwards(file):
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict):
                    yield entry


def _lines_backwards(file: Any) -> Iterator[bytes]:
    position, rest = file.seek(0, os.SEEK_END), b""
    while position:
        size = min(_BLOCK_BYTES, position)
        position -= size
        file.seek(position)
        lines = (file.read(size) + rest).split(b"\n")
        rest = lines[0]
        yield from (line for line in reversed(lines[1:]) if line)
    if rest:
        yield rest
