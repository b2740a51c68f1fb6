"""The audit log: who changed what, from where, over AMQP or HTTP, and what came of it.

Entries are lines of JSON in `audit.log` in the data directory, which only its owner may read; at
`LARGEST` octets it becomes `audit.log.1`, whose predecessor goes. The newest are in memory as
well, and are all there is for a broker without files. Messages are not changes: publishing and
consuming are not audited, nor are queues of one connection only. No entry holds a body, so none
holds a password. Of what was refused, so much a minute is kept for each user, and for all who have
not logged in together: asking in vain must not push others' changes out of the record.

Noting is a list append on the loop; a thread writes what has gathered. A crash loses what was not
written yet, a fraction of a second; a stop writes all of it.
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

FILE = "audit.log"
LARGEST = 16 * 1024 * 1024
MOST_IN_MEMORY = 10_000
REFUSED_PER_MINUTE = 60
_BLOCK = 64 * 1024
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


class Audit:
    def __init__(self, folder: Path | None, wall_ms: Callable[[], int]) -> None:
        """Without a folder entries are kept in memory only."""
        self._path = folder / FILE if folder is not None else None
        self._wall_ms = wall_ms
        self._recent: deque[Entry] = deque(maxlen=MOST_IN_MEMORY)
        self._unwritten: list[Entry] = []
        self._writing: asyncio.Future[None] | None = None
        self._refused: Counter[str] = Counter()
        self._minute = 0

    def __repr__(self) -> str:
        return f"<Audit {self._path} recent={len(self._recent)} unwritten={len(self._unwritten)}>"

    def note(
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
        """`user` is one there is, or empty for somebody who has not logged in."""
        if outcome != _DONE and not self._may_be_noted(user):
            return
        target = target.encode("utf-8", "replace").decode()  # half a character is no JSON
        entry = Entry(self._wall_ms(), user, source, via, vhost, action, target, outcome)
        self._recent.append(entry)
        if self._path is not None:
            self._unwritten.append(entry)
            self._write_soon()

    def _may_be_noted(self, user: str) -> bool:
        minute = self._wall_ms() // 60_000
        if minute != self._minute:
            self._minute = minute
            self._refused.clear()
        self._refused[user] += 1
        return self._refused[user] <= REFUSED_PER_MINUTE

    def _write_soon(self) -> None:
        if self._writing is None:
            loop = asyncio.get_running_loop()
            batch, self._unwritten = self._unwritten, []
            self._writing = loop.run_in_executor(None, self._write, batch)
            self._writing.add_done_callback(self._written)

    def _written(self, done: asyncio.Future[None]) -> None:
        self._writing = None
        if not done.cancelled() and done.exception() is not None:
            log.warning("the audit log cannot be written: %s", done.exception())
        if self._unwritten:
            self._write_soon()

    def _write(self, batch: list[Entry]) -> None:
        """On a thread, one at a time."""
        assert self._path is not None
        if self._path.exists() and self._path.stat().st_size >= LARGEST:
            self._path.replace(self._path.with_suffix(".log.1"))
        lines = "".join(json.dumps(asdict(entry)) + "\n" for entry in batch)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a", encoding="ascii") as file:
            file.write(lines)

    async def newest(self, count: int, wanted: Callable[[dict[str, Any]], bool]) -> list[Any]:
        """Entries that are wanted, the newest first."""
        if self._path is None:
            return _first(count, wanted, (asdict(entry) for entry in reversed(self._recent)))
        while self._writing is not None:
            await asyncio.wait({self._writing})
        return await asyncio.to_thread(_first, count, wanted, _backwards(self._path))

    async def stop(self) -> None:
        while self._writing is not None:
            await asyncio.wait({self._writing})


def _first(
    count: int, wanted: Callable[[dict[str, Any]], bool], entries: Iterator[dict[str, Any]]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for entry in entries:
        if len(found) >= count:
            break
        if wanted(entry):
            found.append(entry)
    return found


def _backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of both files from the last; a line that a crash has cut off is left out."""
    for one in (path, path.with_suffix(".log.1")):
        if not one.exists():
            continue
        with one.open("rb") as file:
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
        size = min(_BLOCK, position)
        position -= size
        file.seek(position)
        lines = (file.read(size) + rest).split(b"\n")
        rest = lines[0]
        yield from (line for line in reversed(lines[1:]) if line)
    if rest:
        yield rest
