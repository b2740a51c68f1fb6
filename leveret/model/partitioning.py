"""Chooses the partition of a record.

Invariant: a key always goes to the same partition of a log of N partitions, and RabbitMQ's stream
clients choose the same one: 32-bit murmur3 of the UTF-8 key, seed 104729, unsigned, modulo N.
`partition_of` is pure. A `Partitioner` belongs to one thread; its round robin starts anew after a
restart.
"""

import mmh3

HASH_SEED = 104_729


def partition_of(key: bytes, partitions: int) -> int:
    return mmh3.hash(key, HASH_SEED, signed=False) % partitions


class Partitioner:
    """An explicit partition if there is one, else by key, else round robin."""

    def __init__(self, partitions: int) -> None:
        if partitions < 1:
            raise ValueError("a log needs at least one partition")
        self.partitions = partitions
        self._next = 0

    def __repr__(self) -> str:
        return f"<Partitioner over {self.partitions}>"

    def choose(self, key: bytes, explicit: int | None = None) -> int:
        if explicit is not None:
            if not 0 <= explicit < self.partitions:
                raise ValueError(
                    f"no partition {explicit}: the log has {self.partitions} partitions"
                )
            return explicit
        if key:
            return partition_of(key, self.partitions)
        chosen = self._next
        self._next = (chosen + 1) % self.partitions
        return chosen
