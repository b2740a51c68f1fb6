"""A stateful consumer: each member of a group keeps the state of its partitions in memory.

`visits` is a log keyed by user. A worker counts the visits of each user in memory, and writes every
new count to `visit-counts`, a compacted log with as many partitions, in the same transaction as its
ack. With `x-rebalance-notify` the worker learns when it gains and loses partitions: it reads the
counts of a new partition from `visit-counts`, and gives one away when its work is committed.
A second worker joins in the middle, and the first one leaves later; no visit is counted twice.
"""

import json
import os
from collections import Counter

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
LOG, STATE, PARTITIONS = "visits", "visit-counts", 4


class Worker:
    """A member of the group, with its own connection as if it ran on another machine."""

    def __init__(self, name):
        self.name = name
        self.counts = {}  # by partition, then by user
        self.connection = pika.BlockingConnection(pika.URLParameters(URL))
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=50)
        self.channel.tx_select()
        arguments = {"x-group": "counters", "x-stream-offset": "first", "x-rebalance-notify": True}
        self.channel.basic_consume(LOG, self.on_delivery, arguments=arguments)

    def on_delivery(self, channel, method, properties, body):
        change = properties.headers.get("x-rebalance")
        if change is None:
            self.on_visit(method.routing_key, properties.headers["x-partition"])
        else:
            self.on_rebalance(change, json.loads(body)["partitions"])
        channel.basic_ack(method.delivery_tag)
        channel.tx_commit()  # the new count and the ack; or the partition's release

    def on_visit(self, user, partition):
        counts = self.counts[partition]
        counts[user] += 1
        properties = pika.BasicProperties(headers={"x-partition": partition})
        self.channel.basic_publish(STATE, user, str(counts[user]).encode(), properties)

    def on_rebalance(self, change, partitions):
        print(f"{self.name}: {change} {partitions}")
        for partition in partitions:
            if change == "assigned":
                self.counts[partition] = read_counts(self.connection, partition)
            else:  # revoked: ours until the ack; lost: gone already, and a commit would be refused
                del self.counts[partition]

    def run_until(self, is_done):
        while not is_done():
            self.connection.process_data_events(0.05)


def read_counts(connection, partition):
    """The state of one partition: the newest count of every user."""
    channel, queue = connection.channel(), f"{STATE}-{partition}"
    channel.basic_qos(prefetch_count=100)
    counts = Counter()
    if channel.queue_declare(queue, passive=True).method.message_count:
        last = channel.consume(queue, arguments={"x-stream-offset": "last"})
        end = next(last)[1].headers["x-stream-offset"]
        channel.cancel()
        for method, properties, body in channel.consume(
            queue, arguments={"x-stream-offset": "first"}
        ):
            counts[method.routing_key] = int(body)
            channel.basic_ack(method.delivery_tag)
            if properties.headers["x-stream-offset"] >= end:
                break
    channel.close()
    return counts


def publish(users):
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for user in users:
            channel.basic_publish(LOG, user, b"visit")


def main():
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        log = {"x-queue-type": "stream", "x-partitions": PARTITIONS}
        channel.queue_declare(LOG, durable=True, arguments=log)
        channel.queue_declare(STATE, durable=True, arguments=log | {"x-cleanup-policy": "compact"})
    users = [f"user-{number}" for number in range(20)]
    first = Worker("first")
    publish(users * 2)
    first.run_until(lambda: sum(map(Counter.total, first.counts.values())) == 40)
    second = Worker("second")
    first.run_until(lambda: len(first.counts) == 2)
    second.run_until(lambda: len(second.counts) == 2)
    publish(users)
    workers = (first, second)
    while sum(counts.total() for worker in workers for counts in worker.counts.values()) < 60:
        for worker in workers:
            worker.connection.process_data_events(0.05)
    first.connection.close()
    second.run_until(lambda: len(second.counts) == PARTITIONS)
    counted = sum(second.counts.values(), Counter())
    print(f"{len(counted)} users, visits of each: {sorted(set(counted.values()))}")
    second.connection.close()


if __name__ == "__main__":
    main()
