"""Activity tracking: many small events, counted by a consumer group that can grow with the load.

Clicks are published to a log with four partitions, keyed by user: the clicks of one user are in one
partition, in order. The two members of the group `dashboard` share the partitions; a third member
would be assigned some of them. The broker stores the group's offsets, so that a member that
reconnects continues where the group stopped.
"""

import os
from collections import Counter

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
LOG, PARTITIONS = "clicks", 4


class Member:
    """A member of the group, with its own connection as if it ran on another machine."""

    def __init__(self):
        self.pages = Counter()
        self.paths = {}
        self.partitions = set()
        self.connection = pika.BlockingConnection(pika.URLParameters(URL))
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=100)
        group = {"x-group": "dashboard", "x-stream-offset": "first"}
        channel.basic_consume(LOG, self.on_click, arguments=group)

    def on_click(self, channel, method, properties, body):
        user, page = method.routing_key, body.decode()
        self.partitions.add(properties.headers["x-partition"])
        self.pages[page] += 1
        self.paths.setdefault(user, []).append(page)
        channel.basic_ack(method.delivery_tag)

    def read_for(self, seconds):
        self.connection.process_data_events(seconds)


def publish(users):
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for page in ("home", "search", "cart"):
            for user in users:
                channel.basic_publish(LOG, user, page.encode())


def main():
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        log = {"x-queue-type": "stream", "x-partitions": PARTITIONS}
        connection.channel().queue_declare(LOG, durable=True, arguments=log)
    members = [Member(), Member()]
    users = [f"user-{number}" for number in range(40)]
    publish(users)
    while sum(member.pages.total() for member in members) < 3 * len(users):
        for member in members:
            member.read_for(0.1)
    for member in members:
        member.connection.close()
    shares = sorted(len(member.partitions) for member in members)
    print(f"partitions per member: {shares}")
    print(f"views: {dict(sorted((members[0].pages + members[1].pages).items()))}")
    paths = members[0].paths | members[1].paths
    ordered = sum(path == ["home", "search", "cart"] for path in paths.values())
    print(f"{ordered} users went from home to search to cart")


if __name__ == "__main__":
    main()
