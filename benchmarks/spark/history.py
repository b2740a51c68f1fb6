"""A broker's history to read: messages published, delivered and acked, and a log."""

from dataclasses import dataclass

from benchmarks.brokers import Running
from benchmarks.crew import Crew
from benchmarks.frames import STAMP, Blob, publish
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.topology import Topology
from leveret.model.properties import encode_properties

WORK, LOG = "spark.work", "spark.log"
_WITHIN = 3600.0


@dataclass(frozen=True, slots=True)
class Letters(Stream):
    """Persistent messages as programs send them: an id each, a type, two headers."""

    def build(self) -> Blob:
        messages = [
            publish(
                self.exchange,
                self.keys[place % len(self.keys)],
                encode_properties(
                    {
                        "content_type": "application/json",
                        "headers": {"tenant": f"t{place % 10}", "attempt": 1},
                        "delivery_mode": 2,
                        "message_id": f"letter-{place:06}",
                        "type": "order",
                    }
                ),
                STAMP.pack(place).ljust(self.body_size, b"x"),
            )
            for place in range(self.blob)
        ]
        return Blob(b"".join(messages), self.blob)


@dataclass(frozen=True, slots=True)
class Amounts:
    messages: int
    records: int
    queues: int


FULL = Amounts(messages=300_000, records=600_000, queues=3_000)
QUICK = Amounts(messages=60_000, records=120_000, queues=600)


def fill(broker: Running, amounts: Amounts) -> None:
    """About four events per message come of it: published, enqueued, delivered, acked."""
    many = tuple(f"spark.one-of-many.{number}" for number in range(amounts.queues))
    Topology(many, durable=True).declare(broker.address)
    Topology((LOG,), durable=True, arguments={"x-queue-type": "stream"}).declare(broker.address)
    send_messages(broker, amounts.messages)
    records = Letters("", (LOG,), persistent=True)
    with Crew([Publisher(broker.address, records, count=amounts.records, window=1000)]) as crew:
        crew.go()
        crew.reports(slice(None), _WITHIN)


def send_messages(broker: Running, count: int) -> None:
    """So many messages published, enqueued, delivered and acked."""
    Topology((WORK,), durable=True).declare(broker.address)
    letters = Letters("", (WORK,), persistent=True)
    with Crew(
        [
            Publisher(broker.address, letters, count=count, window=1000),
            Consumer(broker.address, (WORK,), 0, ack_every=100),
        ],
        consumers=1,
    ) as crew:
        crew.tally.expect(count)
        crew.go()
        crew.reports(slice(None), _WITHIN)
