"""A transactional group member as a program: reads `orders`, writes `invoices` and `audit`.

Arguments: port, seed. Each commit covers a random number of records: their outputs and their acks.
A refused commit (406, the group was rebalanced) closes the channel; the member joins again. Now and
then it leaves the group and joins again without a reason. Some members ask for notifications about
rebalances, and release partitions with their commits. It ends with the broker.
"""

from __future__ import annotations

import random
import sys

import pika
import pika.exceptions

PREFETCH = 20
READS = {"x-group": "T", "x-stream-offset": "first"}
NOTIFY = ({}, *({"x-rebalance-notify": True, "x-rebalance-timeout": ms} for ms in (0, 20, 30_000)))


def work(connection: pika.BlockingConnection, chance: random.Random) -> None:
    """Process records until the channel is closed, or until it is time to leave."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    channel.tx_select()
    left, until_leave = chance.randint(1, 2 * PREFETCH), chance.randint(50, 500)
    # The generator returns None when no record has arrived for a moment: commit what there is.
    arguments = READS | chance.choice(NOTIFY)
    for method, properties, body in channel.consume(
        "orders", arguments=arguments, inactivity_timeout=0.05
    ):
        if method is not None and "x-rebalance" in properties.headers:
            channel.basic_ack(method.delivery_tag)
        elif method is not None:
            channel.basic_publish("invoices", method.routing_key, body)
            channel.basic_publish("", "audit", body, pika.BasicProperties(delivery_mode=2))
            channel.basic_ack(method.delivery_tag)
            left, until_leave = left - 1, until_leave - 1
        if method is None or left <= 0:
            channel.tx_commit()
            left = chance.randint(1, 2 * PREFETCH)
        if until_leave <= 0:
            channel.close()
            return


def main() -> None:
    port, chance = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    try:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        while True:
            try:
                work(connection, chance)
            except pika.exceptions.ChannelClosedByBroker as error:
                if error.reply_code != 406:
                    sys.exit(f"{error}")
    except (pika.exceptions.AMQPError, OSError):
        sys.exit(0)


main()
