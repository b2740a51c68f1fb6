"""A cache of decoded basic.publish frames and their routing plans.

All connections of one user in one virtual host share it, because they have the same permissions: a
thousand clients that publish to the same addresses decode and route them once. The cache is bounded
by its estimated memory, not by entries: a long address takes more, and so does one that leads to
many queues. When it is too large it is cleared, and what is still used comes back. It is also
cleared when a plan is added after a topology change, because every plan is outdated then, and
deleted queues and the connections that owned them must not be kept alive. It lives as long as a
connection that shares it. Event-loop thread only.
"""

from __future__ import annotations

from leveret.amqp_server.codec import Publish, decode_publish

MAX_BYTES = 16 * 1024 * 1024
_ENTRY_BYTES, _FRAME_COPIES, _BYTES_PER_QUEUE = 600, 3, 8


class PublishCache:
    def __init__(self) -> None:
        self.by_frame: dict[bytes, Publish] = {}
        """Key: the bytes of the method frame without its channel number. Read by the wire."""
        self._bytes = 0
        self._version = 0

    def __repr__(self) -> str:
        return f"<PublishCache publishes={len(self.by_frame)} bytes={self._bytes}>"

    def add(self, frame: bytes) -> Publish:
        publish = decode_publish(frame[4:])
        self._charge(_ENTRY_BYTES + _FRAME_COPIES * len(frame))
        self.by_frame[frame] = publish
        return publish

    def add_plan(self, version: int, queues: int) -> None:
        """An entry got a plan with this many queues, for this version of the topology."""
        if version != self._version:
            self._version, self._bytes = version, 0
            self.by_frame.clear()
        self._charge(_BYTES_PER_QUEUE * queues)

    def _charge(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_BYTES:
            self._bytes = size
            self.by_frame.clear()
