"""A run: consecutive messages of one publisher with the same address, kept together.

The wire makes runs out of what one read contains; a message that arrives alone is a run of one. A
run passes through routing, queue, journal, delivery and ack as a whole: arrays of frames and sizes,
and what all its messages share. `Message` objects are made only where something looks at single
messages (limits, TTL, priorities, requeues, dead-lettering, browsing). Those that are made before
all queues have the run are the truth from then on, and all queues of a fanout share them.

In a run from the wire no message needs validation, and all are persistent or none is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

from leveret.model.history import Keep
from leveret.model.message import FRAME_OVERHEAD, Address, LargeBody, Message, Scan, scan


class Run:
    """`ids` is empty until the run is routed. A run has at least one message."""

    __slots__ = (
        "_longest_frame", "_messages", "address", "body_sizes", "channel", "frames",
        "header_sizes", "ids", "is_stored", "keep", "origin", "persistent", "scan", "time_ms",
    )  # fmt: skip

    def __init__(
        self,
        address: Address,
        channel: int,
        frames: list[bytes],
        header_sizes: list[int],
        body_sizes: list[int],
        scan: Scan,
    ) -> None:
        """`scan` is that of the last message."""
        self.address = address
        self.channel = channel
        self.frames = frames
        self.header_sizes = header_sizes
        self.body_sizes = body_sizes
        self.scan = scan
        self.persistent = scan.persistent
        self.ids: Sequence[int] = ()
        self.time_ms = 0
        self.origin = 0
        self.keep = Keep.NOTHING
        self.is_stored = False
        """Whether the content is in the store; single messages know it themselves."""
        self._longest_frame = 0
        self._messages: list[Message] | None = None

    @staticmethod
    def of(messages: list[Message]) -> Run:
        """A run of messages that were made before; they have the same address."""
        first = messages[0]
        made = Run(
            first.address,
            first.channel,
            [message.frames for message in messages],
            [message.header_size for message in messages],
            [message.body_size for message in messages],
            first.scan,
        )
        made.ids = [message.id for message in messages]
        made.time_ms, made.origin, made.keep = first.time_ms, first.origin, first.keep
        made._messages = messages
        return made

    def __len__(self) -> int:
        return len(self.body_sizes)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __repr__(self) -> str:
        address = self.address
        return f"<Run of {len(self)} to {address.exchange!r}/{address.routing_key!r}>"

    @property
    def is_packed(self) -> bool:
        """Whether no single messages have been made."""
        return self._messages is None

    @property
    def content_size(self) -> int:
        """Bytes of all headers and bodies."""
        if self._messages is not None:
            return sum([message.content_size for message in self._messages])
        return sum(map(len, self.frames))

    @property
    def bytes_to_store(self) -> int:
        """`content_size` without a body that is stored in parts."""
        body = self.large_body
        return self.content_size - (len(body) if body is not None and body.first_part else 0)

    @property
    def messages(self) -> list[Message]:
        """The single messages, made when they are first needed."""
        if self._messages is None:
            self._messages = self.make_messages(slice(0, len(self)))
        return self._messages

    def mark_stored(self) -> None:
        """The content of all messages is in the store."""
        self.is_stored = True
        for message in self._messages or ():
            message.stored = True

    def shift_time(self, milliseconds: int) -> None:
        """The wall clock was set by this much since the messages were stored."""
        self.time_ms += milliseconds
        for message in self._messages or ():
            message.time_ms += milliseconds

    def make_messages(self, part: slice) -> list[Message]:
        """The single messages of a part. If the run is packed, it stays so: they are new."""
        if self._messages is not None:
            return self._messages[part]
        address, channel, is_stored = self.address, self.channel, self.is_stored
        time_ms, origin, keep = self.time_ms, self.origin, self.keep
        known, found = self.frames[-1][19 : 7 + self.header_sizes[-1]], self.scan
        made: list[Message] = []
        sizes = zip(self.header_sizes[part], self.body_sizes[part], strict=True)
        ids = self.ids[part] or repeat(0)
        for frames, (header_size, body_size), message_id in zip(
            self.frames[part], sizes, ids, strict=False
        ):
            properties = frames[19 : 7 + header_size]
            if properties != known:
                known, found = properties, scan(properties)
            message = Message(address, channel, frames, header_size, body_size, found)
            message.id, message.time_ms, message.origin = message_id, time_ms, origin
            message.keep, message.stored = keep, is_stored
            made.append(message)
        return made

    def make_message(self, index: int) -> Message:
        """`make_messages` for one message."""
        if self._messages is not None:
            return self._messages[index]
        frames, header_size = self.frames[index], self.header_sizes[index]
        is_last = index == len(self.frames) - 1
        found = self.scan if is_last else scan(frames[19 : 7 + header_size])
        body_size = self.body_sizes[index]
        message = Message(self.address, self.channel, frames, header_size, body_size, found)
        message.id, message.time_ms, message.origin = self.ids[index], self.time_ms, self.origin
        message.keep, message.stored = self.keep, self.is_stored
        return message

    def copy(self, part: slice) -> Run:
        """A run of a part of its messages, which keeps none of the others in memory."""
        frames, header_sizes = self.frames[part], self.header_sizes[part]
        last = scan(frames[-1][19 : 7 + header_sizes[-1]])
        sizes = self.body_sizes[part]
        made = Run(self.address, self.channel, frames, header_sizes, sizes, last)
        made.ids = self.ids[part]
        made.persistent, made.is_stored = self.persistent, self.is_stored
        made.time_ms, made.origin, made.keep = self.time_ms, self.origin, self.keep
        made._longest_frame = self._longest_frame
        made._messages = None if self._messages is None else self._messages[part]
        return made

    def assign_messages(self) -> None:
        """Tell the single messages what the run has been assigned."""
        time_ms, origin, keep = self.time_ms, self.origin, self.keep
        for message, message_id in zip(self._messages or (), self.ids, strict=True):
            message.id, message.time_ms = message_id, time_ms
            message.origin, message.keep = origin, keep

    def has_header(self, name: bytes) -> bool:
        """Whether the properties of any message contain these bytes: a length and a name."""
        ends = [7 + size for size in self.header_sizes]
        return max(map(bytes.find, self.frames, repeat(name), repeat(19), ends)) >= 0

    @property
    def large_body(self) -> LargeBody | None:
        """That of a large message, which is always alone."""
        return None if self._messages is None else self._messages[0].large_body

    @property
    def longest_frame(self) -> int:
        """The length of its longest frame."""
        if self._longest_frame == 0:
            longest = max(max(self.body_sizes), max(self.header_sizes))
            self._longest_frame = longest + FRAME_OVERHEAD
        return self._longest_frame

    def frames_for(self, part: slice, channel: int) -> list[bytes]:
        """The content frames of a part for a channel, which must allow frames of this length.

        Frames of the whole run replace those of this one, so that a fanout makes them once.
        """
        contents = self.frames[part]
        if channel == self.channel:
            return contents
        number = channel.to_bytes(2, "big")
        contents = [
            _with_channel(frames, number, header_size)
            for frames, header_size in zip(contents, self.header_sizes[part], strict=True)
        ]
        if len(contents) == len(self.frames):
            self.frames, self.channel = contents, channel
        return contents


def _with_channel(frames: bytes, channel: bytes, header_size: int) -> bytes:
    body = header_size + FRAME_OVERHEAD
    header = b"\x02" + channel + frames[3:body]
    if len(frames) == body:
        return header
    return b"".join((header, b"\x03", channel, frames[body + 3 :]))
