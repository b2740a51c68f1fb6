"""Fills a broker with history: messages published, delivered and acked, and a log."""

from dataclasses import dataclass

from benchmarks.brokers import RunningBroker
from benchmarks.frames import STAMP, Blob, publish
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.topology import Topology
from benchmarks.workers import WorkerPool
from leveret.model.message import encode_properties

WORK, LOG = "spark.work", "spark.log"
_TIMEOUT = 3600.0


@dataclass(frozen=True, slots=True)
class TypicalStream(Stream):
    """Persistent messages as applications send them: with an id, a type and two headers."""

    def build(self) -> Blob:
        messages = [
            publish(
                self.exchange,
                self.keys[index % len(self.keys)],
                encode_properties(
                    {
                        "content_type": "application/json",
                        "headers": {"tenant": f"t{index % 10}", "attempt": 1},
                        "delivery_mode": 2,
                        "message_id": f"letter-{index:06}",
                        "type": "order",
                    }
                ),
                STAMP.pack(index).ljust(self.body_size, b"x"),
            )
            for index in range(self.blob)
        ]
        return Blob(b"".join(messages), self.blob)


@dataclass(frozen=True, slots=True)
class Amounts:
    messages: int
    records: int
    queues: int


FULL = Amounts(messages=300_000, records=600_000, queues=3_000)
QUICK = Amounts(messages=60_000, records=120_000, queues=600)


def fill(broker: RunningBroker, amounts: Amounts) -> None:
    """Each message makes four events: published, enqueued, delivered, acked."""
    idle_queues = tuple(f"spark.one-of-many.{number}" for number in range(amounts.queues))
    Topology(idle_queues, durable=True).declare(broker.address)
    Topology((LOG,), durable=True, arguments={"x-queue-type": "stream"}).declare(broker.address)
    send_messages(broker, amounts.messages)
    records = TypicalStream("", (LOG,), persistent=True)
    with WorkerPool(
        [Publisher(broker.address, records, count=amounts.records, window=1000)]
    ) as pool:
        pool.go()
        pool.reports(slice(None), _TIMEOUT)


def send_messages(broker: RunningBroker, count: int) -> None:
    """Publish and consume `count` messages."""
    Topology((WORK,), durable=True).declare(broker.address)
    messages = TypicalStream("", (WORK,), persistent=True)
    with WorkerPool(
        [
            Publisher(broker.address, messages, count=count, window=1000),
            Consumer(broker.address, (WORK,), 0, ack_every=100),
        ],
        consumers=1,
    ) as pool:
        pool.counts.expect(count)
        pool.go()
        pool.reports(slice(None), _TIMEOUT)
