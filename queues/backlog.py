"""The part of a queue that is on disk only: ids and sizes, twelve octets a message.

First in, first out. Content is read ahead of the consumers, a slice from the front at a time; what
is being read still belongs to the backlog until it has arrived. A read that fails for a passing
reason changes nothing: the slice is asked for again.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence

from leveret.model.store import Live, Rotten, StoredMessage, StoreError

READ_AHEAD = 2_000
READ_AHEAD_BYTES = 4 * 1024 * 1024
_COMPACT_AT = 65_536

Load = Callable[[Sequence[int]], Awaitable[list[StoredMessage | Rotten]]]


class Backlog:
    def __init__(self) -> None:
        self._ids = array("Q")
        self._sizes = array("I")
        self._head = 0
        self._reading = 0  # how many from the head on are being read
        self._task: asyncio.Task[None] | None = None
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._ids) - self._head

    def append(self, message_id: int, size: int) -> None:
        self._ids.append(message_id)
        self._sizes.append(size)
        self.bytes += size

    def extend(self, live: Live) -> None:
        self._ids.extend(live.ids)
        self._sizes.extend(live.sizes)
        self.bytes += sum(live.sizes)

    def part(self) -> Live:
        """A copy of all of it."""
        return Live(self._ids[self._head :], self._sizes[self._head :])

    def clear(self) -> array[int]:
        """Nothing is left, and nothing is read any more; the ids that were here."""
        self.stop()
        gone = self.part().ids
        self._ids, self._sizes = array("Q"), array("I")
        self._head = self.bytes = 0
        return gone

    # Reading -----------------------------------------------------------------------------------

    def read(
        self,
        load: Load,
        arrived: Callable[[list[StoredMessage | Rotten]], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        """Read the next slice, unless one is being read: `arrived` takes it over, in order."""
        if self._task is not None or not len(self):
            return
        self._reading = self._slice()
        ids = self._ids[self._head : self._head + self._reading]
        work = self._read(ids, load, arrived, failed)
        self._task = asyncio.get_running_loop().create_task(work)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task, self._reading = None, 0

    async def _read(
        self,
        ids: Sequence[int],
        load: Load,
        arrived: Callable[[list[StoredMessage | Rotten]], None],
        failed: Callable[[StoreError], None],
    ) -> None:
        try:
            found = await load(ids)
        except StoreError as error:
            self._task, self._reading = None, 0
            failed(error)
            return
        self._drop_read()
        self._task = None
        arrived(found)

    def _slice(self) -> int:
        """How many to read at once: so many, or so many octets, but at least one."""
        stop, room = self._head, READ_AHEAD_BYTES
        last = min(len(self._ids), self._head + READ_AHEAD)
        while stop < last and (room > 0 or stop == self._head):
            room -= self._sizes[stop]
            stop += 1
        return stop - self._head

    def _drop_read(self) -> None:
        stop = self._head + self._reading
        self.bytes -= sum(self._sizes[self._head : stop])
        self._head, self._reading = stop, 0
        if stop > _COMPACT_AT and stop * 2 > len(self._ids):
            del self._ids[:stop], self._sizes[:stop]
            self._head = 0
