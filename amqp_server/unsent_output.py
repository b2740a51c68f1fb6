"""Output that waits while a large message is written to the socket.

A large message is written in portions, one per tick, and the next one only when the socket has
taken the last: so it takes no memory beside the message itself, however many consumers get it, and
other clients do not wait for it. Portions consist of whole frames, so heartbeats may come between
them. Everything that is sent after the message waits behind it. Event-loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leveret.model.message import LargeContent


class UnsentOutput:
    """`bytes` is the size of the queued output, without large messages."""

    __slots__ = ("_waiting", "bytes")

    def __init__(self) -> None:
        self._waiting: list[bytes | Iterator[bytes]] = []  # every connection has one: no deque
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, output: Sequence[bytes | LargeContent]) -> None:
        small: list[bytes] = []
        for item in output:
            if isinstance(item, bytes):
                small.append(item)
            else:
                self._add_small(small)
                small = []
                self._waiting.append(iter(item))
        self._add_small(small)

    def _add_small(self, items: list[bytes]) -> None:
        if items:
            self._waiting.append(b"".join(items))
            self.bytes += sum(map(len, items))

    def next_portion(self) -> bytes:
        """Take what is to be written next; empty if nothing waits."""
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, bytes):
                del self._waiting[0]
                self.bytes -= len(first)
                return first
            portion = next(first, b"")
            if portion:
                return portion
            del self._waiting[0]
        return b""

    def clear(self) -> None:
        self._waiting.clear()
        self.bytes = 0
