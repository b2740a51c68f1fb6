"""The part of a queue whose content is on disk only: thirteen bytes in memory per message.

Content is in the store, or in spill files if the message need not survive a restart. First in,
first out. Content is read ahead of the consumers, a slice from the front at a time. A slice stays
in the backlog until it is loaded, so a read that fails temporarily changes nothing and is repeated
later. Event-loop thread only.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from itertools import compress

from leveret.model.message import Message
from leveret.model.run import Run
from leveret.model.store import (
    LiveMessages,
    LoadedRun,
    Spill,
    SpilledMessage,
    StoreError,
    UnreadableMessage,
)

READ_AHEAD = 2_000
READ_AHEAD_BYTES = 4 * 1024 * 1024
_COMPACT_AT = 65_536
_STORED, _SPILLED = b"\1", b"\0"

Load = Callable[[Sequence[int]], Awaitable[list[LoadedRun]]]
OnLoaded = Callable[[list[LoadedRun]], None]
OnFailed = Callable[[StoreError], None]


class DiskBacklog:
    def __init__(self, open_spill: Callable[[], Spill] | None = None) -> None:
        self._ids = array("Q")
        self._sizes = array("I")
        self._is_stored = bytearray()
        self._open_spill = open_spill
        self.files: Spill | None = None
        """The content of spilled messages, once there were any."""
        self._spilled_count = 0
        self._head = 0
        self._reading = 0  # how many from the head on are being read
        self._task: asyncio.Task[None] | None = None
        self.bytes = 0
        self._redelivered: set[int] | None = None

    def __len__(self) -> int:
        return len(self._ids) - self._head

    @property
    def can_spill(self) -> bool:
        return self._open_spill is not None

    def append(self, message_id: int, size: int) -> None:
        """Add a message whose content is in the store."""
        self.extend(LiveMessages(array("Q", [message_id]), array("I", [size])))

    def append_run(self, run: Run) -> None:
        """Add messages whose content is in the store."""
        self._add(run.ids, run.body_sizes, _STORED)

    def extend(self, messages: LiveMessages) -> None:
        """Add messages whose content is in the store."""
        self._add(messages.ids, messages.sizes, _STORED)

    def spill(self, messages: Sequence[Message], sizes: Sequence[int]) -> None:
        """Add messages, and write their content to spill files."""
        if self.files is None:
            assert self._open_spill is not None
            self.files = self._open_spill()
        self.files.append(messages)
        self._spilled_count += len(messages)
        self._add([message.id for message in messages], sizes, _SPILLED)

    def _add(self, ids: Sequence[int], sizes: Sequence[int], kind: bytes) -> None:
        self._ids.extend(ids)
        self._sizes.extend(sizes)
        self._is_stored += kind * len(ids)
        self.bytes += sum(sizes)

    def mark_redelivered(self, message_id: int) -> None:
        """For a message that is here and was perhaps delivered before, under another id."""
        if self._redelivered is None:
            self._redelivered = set()
        self._redelivered.add(message_id)

    @property
    def has_redelivered(self) -> bool:
        return self._redelivered is not None

    def is_redelivered(self, message_id: int) -> bool:
        return self._redelivered is not None and message_id in self._redelivered

    def ids(self, start: int, count: int) -> array[int]:
        """The ids of `count` messages, the first of them at this place."""
        return self._ids[self._head + start : self._head + start + count]

    def stored(self) -> LiveMessages:
        """The messages whose content is in the store."""
        ids, sizes = self._ids[self._head :], self._sizes[self._head :]
        if self._spilled_count:
            chosen = self._is_stored[self._head :]
            ids = array("Q", compress(ids, chosen))
            sizes = array("I", compress(sizes, chosen))
        return LiveMessages(ids, sizes)

    def clear(self) -> array[int]:
        """Remove everything, stop reading, and return the ids whose content is in the store."""
        self.stop()
        ids = self.stored().ids
        self._ids, self._sizes, self._is_stored = array("Q"), array("I"), bytearray()
        self._head = self.bytes = self._spilled_count = 0
        self._redelivered = None
        if self.files is not None:
            self.files.clear()
            self.files = None
        return ids

    # Reading -----------------------------------------------------------------------------------

    async def load(self, load_stored: Load, ids: Sequence[int]) -> list[LoadedRun]:
        """The content of these messages, which ascend; `load_stored` reads from the store."""
        if self.files is None:
            return await load_stored(ids)
        spilled = await self.files.load(ids)
        results: list[LoadedRun] = []
        others = [i for i in ids if not isinstance(spilled.get(i), SpilledMessage)]
        if others:
            stored = await load_stored(others)
            results += [one for one in stored if isinstance(one, Run)]
        found = {message_id for run in results for message_id in run.ids}  # type: ignore[union-attr]
        for message_id in ids:
            result = spilled.get(message_id)
            if isinstance(result, SpilledMessage):
                results.append(Run.of([Message.restored(result)]))
            elif message_id not in found:
                missing = UnreadableMessage(message_id, "no such message")
                results.append(result if isinstance(result, UnreadableMessage) else missing)
        return sorted(results, key=_first_id)

    def read(
        self,
        load_stored: Load,
        on_loaded: OnLoaded,
        on_failed: OnFailed,
        max_count: int = READ_AHEAD,
    ) -> None:
        """Read the next slice unless one is being read; `on_loaded` gets the content in order."""
        if self._task is not None or not len(self):
            return
        self._reading = self._slice_length(max_count)
        ids = self._ids[self._head : self._head + self._reading]
        reading = self._read(ids, load_stored, on_loaded, on_failed)
        self._task = asyncio.get_running_loop().create_task(reading)

    @property
    def first_id(self) -> int:
        """The id of the message at the head; there is one."""
        return self._ids[self._head]

    def take_first(self, message_id: int) -> bool:
        """Drop the head, whose content the caller has; False if it is another message by now."""
        if self._task is not None or not len(self) or self.first_id != message_id:
            return False
        self._reading = 1
        self._drop_slice()
        return True

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task, self._reading = None, 0

    async def _read(
        self, ids: Sequence[int], load_stored: Load, on_loaded: OnLoaded, on_failed: OnFailed
    ) -> None:
        try:
            loaded = await self.load(load_stored, ids)
        except StoreError as error:
            self._task, self._reading = None, 0
            on_failed(error)
            return
        self._drop_slice()
        self._task = None
        on_loaded(loaded)
        if not len(self):
            self._redelivered = None

    def _slice_length(self, max_count: int) -> int:
        """How many messages to read at once: limited by number and bytes, but at least one."""
        stop, budget = self._head, READ_AHEAD_BYTES
        last = min(len(self._ids), self._head + max_count)
        while stop < last and (budget > 0 or stop == self._head):
            budget -= self._sizes[stop]
            stop += 1
        return stop - self._head

    def _drop_slice(self) -> None:
        stop = self._head + self._reading
        self.bytes -= sum(self._sizes[self._head : stop])
        if self.files is not None:
            self._spilled_count -= self._is_stored.count(_SPILLED, self._head, stop)
            self.files.drop_to(self._ids[stop - 1])
        self._head, self._reading = stop, 0
        if stop > _COMPACT_AT and stop * 2 > len(self._ids):
            del self._ids[:stop], self._sizes[:stop], self._is_stored[:stop]
            self._head = 0


def _first_id(loaded: LoadedRun) -> int:
    return loaded.ids[0] if isinstance(loaded, Run) else loaded.id
