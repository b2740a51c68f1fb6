"""Hold, limit, hand out, settle. Knows neither sockets nor exchanges nor SQL."""

from queues.classic import ClassicQueue
from queues.entry import Entry, Outcome
from queues.port import Consumer, Enqueued, HeldQueue, Target
from queues.reply import ReplyQueue
from queues.spec import QueueSpec
from queues.stream import LogQueue, PartitionedLog

__all__ = [
    "ClassicQueue",
    "Consumer",
    "Enqueued",
    "Entry",
    "HeldQueue",
    "LogQueue",
    "Outcome",
    "PartitionedLog",
    "QueueSpec",
    "ReplyQueue",
    "Target",
]
