"""Log mode: queues that keep their records, with consumers, consumer groups and partitions.

`log_queue.LogQueue` is a log of one partition, or one partition of a `log_queue.PartitionedLog`.
Consuming never removes a record: every consumer and every group has its own offset.
The package `files` holds the segment files.
"""
