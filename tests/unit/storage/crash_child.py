"""Publishes and acks as fast as it can until it is killed, and prints its progress.

Prints `tried P A` before work is handed over and `durable P A` when the store has reported it
committed: the highest message id published and the highest acked. Acks in order.
"""

from __future__ import annotations

import asyncio
import random
import sys
from array import array
from pathlib import Path

from leveret.model.store import BatchCommitted, LiveMessages, Snapshot
from tests.contract.stores import Harness


def body_of(message_id: int) -> bytes:
    return b"message %d " % message_id * (message_id % 50)


def report(stage: str, published: int, acked: int) -> None:
    sys.stdout.write(f"{stage} {published} {acked}\n")
    sys.stdout.flush()


class Load:
    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        last = harness.recovered.last_message_id  # an empty queue starts above the acked ids
        self.published = max(harness.live(), default=last)
        self.unacked = harness.live()
        self.acked = min(self.unacked, default=last + 1) - 1
        self.announced: dict[int, tuple[int, int]] = {}

    def on_outcome(self, outcome: BatchCommitted) -> None:
        report("durable", *self.announced.pop(outcome.batch_number))

    def work(self) -> None:
        for _ in range(random.randrange(40)):
            message_id = next(self.harness.store.ids)
            self.publish(message_id)
        count = random.randrange(40)
        done, self.unacked = self.unacked[:count], self.unacked[count:]
        self.harness.ack(done)
        self.acked = max([self.acked, *done])
        if random.random() < 0.1:
            sizes = array("I", [len(body_of(i)) for i in self.unacked])
            parts = (LiveMessages(array("Q", self.unacked), sizes),)
            self.harness.store.save(Snapshot(1, parts, trim=random.random() < 0.5))
        self.announced[self.harness.store.batch_number] = (self.published, self.acked)
        report("tried", self.published, self.acked)

    def publish(self, message_id: int) -> None:
        ids, self.harness.store.ids = self.harness.store.ids, iter([message_id])  # type: ignore[misc]
        self.harness.publish(body_of(message_id))
        self.harness.store.ids = ids  # type: ignore[misc]
        self.published = message_id
        self.unacked.append(message_id)


async def main(directory: Path) -> None:
    harness = Harness(directory)
    load = Load(harness)
    harness.on_committed = load.on_outcome
    load.announced[1] = (load.published, load.acked)
    harness.declare()
    while True:
        if len(load.announced) < 2:
            load.work()
        harness.store.flush()
        await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
