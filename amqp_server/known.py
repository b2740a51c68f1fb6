"""What frames of basic.publish mean: remembered, so that the next one is found and not worked out.

One for all connections of a user in a virtual host, whose rights are the same: a thousand clients
that publish to the same addresses remember them once. Bounded by what it takes, not by number: an
address takes more the longer it is, and the more queues it leads to. When there is too much, all of
it goes, and what is still in use comes back. So it does when a way is worked out after a change of
the topology, as all ways have to be then: queues that have gone, the connections that owned them
and their addresses must not stay for it. Lives as long as a connection that shares it; event-loop
thread only.
"""

from __future__ import annotations

from amqp_server.codec import Publish, decode_publish

MOST_OCTETS = 16 * 1024 * 1024
_OCTETS_EACH, _COPIES, _OCTETS_PER_QUEUE = 600, 3, 8


class Known:
    def __init__(self) -> None:
        self.by_frame: dict[bytes, Publish] = {}
        """By method frames from their length on: the channel has no say. Read by the wire."""
        self._octets = 0
        self._version = 0

    def __repr__(self) -> str:
        return f"<Known publishes={len(self.by_frame)} octets={self._octets}>"

    def learn(self, frame: bytes) -> Publish:
        publish = decode_publish(frame[4:])
        self._weigh(_OCTETS_EACH + _COPIES * len(frame))
        self.by_frame[frame] = publish
        return publish

    def leads_to(self, version: int, queues: int) -> None:
        """One of them has been found to lead to so many, in this version of the topology."""
        if version != self._version:
            self._version, self._octets = version, 0
            self.by_frame.clear()
        self._weigh(_OCTETS_PER_QUEUE * queues)

    def _weigh(self, octets: int) -> None:
        self._octets += octets
        if self._octets > MOST_OCTETS:
            self._octets = octets
            self.by_frame.clear()
