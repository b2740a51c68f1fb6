"""A client that performs given actions, and a ledger of what it knows for certain.

Publishes are confirmed, acks are committed transactions, and before the broker is killed, a
message published to `fence` is confirmed last: the writer commits in order, so all of it is on
disk. Messages that were unconfirmed at the kill (`maybe`) may or may not be stored.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pika
import pika.exceptions

from tests.support.brokers import running_leveret

QUEUES = ("work", "dead", "copy", "short", "brief", "fence")
LEAVES = {
    "acked", "rejected", "nacked", "expired", "dead_lettered", "dropped", "purged", "queue_deleted",
}  # fmt: skip
SHORT = 2
ACTIONS = (
    "publish", "several", "fanout", "unroutable", "overflow", "expire", "record", "acked",
    "dead_lettered", "requeued", "purge", "delete",
)  # fmt: skip


@dataclass(frozen=True)
class BrokerRun:
    """The actions of a client during one run of the broker, and how the run ends."""

    actions: Sequence[str]
    is_killed: bool


class Client:
    """Counts events by queue; `bytes` are the bytes of the bodies enqueued in each queue."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[str] = Counter()
        self.bodies: dict[str, bytes] = {}
        self.maybe: set[str] = set()
        self.unroutable = self.records = self.published = 0

    def connect(self, url: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.confirmed = self.connection.channel()
        self.confirmed.confirm_delivery()
        self.settling = self.connection.channel()
        self.settling.tx_select()

    def declare(self) -> None:
        channel = self.confirmed
        channel.exchange_declare("dlx", "fanout", durable=True)
        channel.exchange_declare("both", "fanout", durable=True)
        arguments = {
            "work": {"x-dead-letter-exchange": "dlx"},
            "short": {"x-max-length": SHORT},
            "brief": {"x-message-ttl": 1},
        }
        for name in QUEUES:
            channel.queue_declare(name, durable=True, arguments=arguments.get(name))
        channel.queue_bind("dead", "dlx")
        for name in ("work", "copy"):
            channel.queue_bind(name, "both")
        stream = {"x-queue-type": "stream", "x-partitions": 2}
        channel.queue_declare("feed", durable=True, arguments=stream)

    def do(self, action: str) -> None:
        if action in ("acked", "dead_lettered", "requeued"):
            self._settle(action)
        else:
            getattr(self, f"_{action}")()

    def execute(self, run: BrokerRun, url: str, pid: int) -> None:
        self.connect(url)
        if not self.published:
            self.declare()
        for action in run.actions:
            self.do(action)
        self._send("", "fence", "fence")
        if run.is_killed:
            self._burst()
            os.kill(pid, signal.SIGKILL)
            with suppress(pika.exceptions.AMQPError):
                self.connection.process_data_events(time_limit=30)
            assert self.connection.is_closed
        else:
            self.connection.close()

    def _send(self, exchange: str, key: str, *queues: str) -> None:
        self.published += 1
        name = f"m{self.published}"
        body = name.encode() * (self.published % 40)
        properties = pika.BasicProperties(delivery_mode=2, message_id=name, headers={"n": 1})
        self.confirmed.basic_publish(exchange, key, body, properties)
        if exchange != "feed":
            self.bodies[name] = body
        for queue in queues:
            self.counts[queue, "enqueued"] += 1
            self.bytes[queue] += len(body)

    def _publish(self) -> None:
        self._send("", "work", "work")

    def _several(self) -> None:
        for _ in range(5):
            self._publish()

    def _fanout(self) -> None:
        self._send("both", "any", "work", "copy")

    def _unroutable(self) -> None:
        self._send("", "nowhere")
        self.unroutable += 1

    def _overflow(self) -> None:
        self._send("", "short", "short")
        self.counts["short", "dropped"] += self.counts["short", "enqueued"] > SHORT

    def _expire(self) -> None:
        """Everything in this queue expires before the end."""
        self._send("", "brief", "brief")
        self.counts["brief", "expired"] += 1

    def _record(self) -> None:
        self._send("feed", f"k{self.published % 7}")
        self.records += 1

    def _settle(self, outcome: str) -> None:
        channel = self.settling
        method, properties, body = channel.basic_get("work")
        if method is None:
            return
        self.counts["work", "got"] += 1
        if outcome == "acked":
            channel.basic_ack(method.delivery_tag)
        elif outcome == "dead_lettered":
            channel.basic_reject(method.delivery_tag, requeue=False)
            self.counts["dead", "enqueued"] += 1
            self.bytes["dead"] += len(body) if properties.message_id in self.bodies else 0
        else:
            channel.basic_nack(method.delivery_tag, requeue=True)
        channel.tx_commit()
        self.counts["work", outcome] += 1

    def _purge(self) -> None:
        self.counts["copy", "purged"] += self.confirmed.queue_purge("copy").method.message_count

    def _delete(self) -> None:
        """A queue with a unique name, so that its history is separate from the next one's."""
        name = f"gone-{self.published}"
        self.confirmed.queue_declare(name, durable=True)
        self._send("", name, name)
        self.confirmed.queue_delete(name)
        self.counts[name, "queue_deleted"] += 1

    def _burst(self) -> None:
        """Publishes without waiting for confirms."""
        channel = self.connection.channel()
        for _ in range(100):
            self.published += 1
            name = f"m{self.published}"
            self.maybe.add(name)
            properties = pika.BasicProperties(delivery_mode=2, message_id=name)
            channel.basic_publish("", "work", name.encode(), properties)


def run_all(client: Client, runs: Sequence[BrokerRun], data_dir: Path) -> None:
    for run in runs:
        with running_leveret("--data-dir", str(data_dir)) as broker:
            client.execute(run, broker.url, broker.pid)
