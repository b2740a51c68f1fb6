"""A message's place in one queue."""

from __future__ import annotations

from enum import Enum

from leveret.model.history import EventKind
from leveret.model.message import Message


class Outcome(Enum):
    """What became of a delivery."""

    ACK = EventKind.ACKED
    REJECT = EventKind.REJECTED
    NACK = EventKind.NACKED
    REQUEUE = EventKind.REQUEUED


class Entry:
    """`id` is the message's global number and so its place in the queue."""

    __slots__ = ("expires_ms", "id", "message", "redelivered", "returns")

    def __init__(self, message: Message, redelivered: bool = False) -> None:
        self.message = message
        self.id = message.id
        self.redelivered = redelivered
        self.returns = 0  # how often it came back
        self.expires_ms = 0  # wall clock; 0: never

    def __repr__(self) -> str:
        return f"<Entry {self.id}{' redelivered' if self.redelivered else ''}>"
