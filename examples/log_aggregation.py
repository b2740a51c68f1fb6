"""Log aggregation: all services log to one place, and several programs read it independently.

Services use Python's `logging` with a handler that publishes to a partitioned log, keyed by
service, so that the lines of one service stay in order. Two consumer groups read the same log, each
at its own speed: `archive` writes files, `alerts` reports errors. Another group can be added later
and read everything from the beginning.
"""

import logging
import os
import tempfile
from pathlib import Path

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
LOG = "service-logs"


class BrokerHandler(logging.Handler):
    """Publishes log records to the broker's log, with the logger's name as routing key."""

    def __init__(self, channel):
        super().__init__()
        self.channel = channel

    def emit(self, record):
        properties = pika.BasicProperties(headers={"level": record.levelname})
        self.channel.basic_publish(LOG, record.name, self.format(record).encode(), properties)


def read(connection, group, count):
    """`count` records that the group has not read; acks advance it. (A real one never stops.)"""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    arguments = {"x-group": group, "x-stream-offset": "first"}
    for method, properties, body in channel.consume(LOG, arguments=arguments):
        yield method.routing_key, properties.headers["level"], body.decode()
        channel.basic_ack(method.delivery_tag)
        if method.delivery_tag == count:
            break
    channel.close()


def archive(connection, folder, count):
    for service, level, text in read(connection, "archive", count):
        with (folder / f"{service}.log").open("a") as file:
            file.write(f"{level} {text}\n")


def alerts(connection, count):
    for service, level, text in read(connection, "alerts", count):
        if level == "ERROR":
            print(f"alert: {service}: {text}")


def main():
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        log = {"x-queue-type": "stream", "x-partitions": 3, "x-max-age": "7D"}
        channel.queue_declare(LOG, durable=True, arguments=log)
        channel.confirm_delivery()
        services = {name: logging.getLogger(name) for name in ("shop", "stock", "mail")}
        for logger in services.values():
            logger.addHandler(BrokerHandler(channel))
            logger.setLevel(logging.INFO)
        services["shop"].info("order 4711")
        services["stock"].info("reserved 2 hares")
        services["mail"].error("no route to ann@example.org")
        services["shop"].warning("order 4711 waits")

        folder = Path(tempfile.mkdtemp())
        archive(connection, folder, count=4)
        alerts(connection, count=4)
        print((folder / "shop.log").read_text(), end="")


if __name__ == "__main__":
    main()
