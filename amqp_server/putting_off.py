"""What waits behind held channels, or for a peer that does not read: no more is read than so much.

A channel is held for as long as a disk takes, which is for ever while it is full; what comes in
meanwhile waits in the channel's inbox. One per connection; event-loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amqp_server.line import Deaf, Listening

if TYPE_CHECKING:
    from amqp_server.channel import Channel

MOST_OCTETS = 4 * 1024 * 1024
OCTETS_EACH = 1000
"""What a method takes while it waits, roughly; its table takes this many times its size:"""
TABLE_FACTOR = 16


class PuttingOff:
    __slots__ = ("_listening", "octets", "until_read")

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self.octets = 0
        """Roughly."""
        self.until_read: list[Callable[[], None]] = []
        """What is to be done when the peer has read our answers."""

    def add(self, channel: Channel, octets: int, call: Callable[[], None]) -> None:
        """Call it when the channel is held no longer."""
        assert channel.inbox is not None
        channel.inbox.append(call)
        channel.put_off += octets + OCTETS_EACH
        self.octets += octets + OCTETS_EACH
        if self.octets > MOST_OCTETS:
            self._listening.stop(Deaf.CHANNELS_HELD)

    def took_up(self, channel: Channel) -> None:
        """All that the channel had put off has been done, or never will be."""
        self.octets -= channel.put_off
        channel.put_off = 0
        if self.octets <= MOST_OCTETS:
            self._listening.go_on(Deaf.CHANNELS_HELD)
