"""Log mode as a kind of queue: cursors, consumer groups and partitioned logs over `queues.log`.

`LogQueue` is one partition (or a log of one), `PartitionedLog` the front of several. A record is
never taken away: each consumer, or each group, has its own place.
"""

from queues.stream.groups import LogGroup
from queues.stream.partitioned import PartitionedLog
from queues.stream.single import LogQueue
from queues.stream.spec import LogSpec, parse_log_spec

__all__ = ["LogGroup", "LogQueue", "LogSpec", "PartitionedLog", "parse_log_spec"]
