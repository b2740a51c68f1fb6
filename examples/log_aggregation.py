"""Log aggregation: every service logs into one place, and whoever wants to can read along.

Services use Python's own `logging` with a handler that appends to a partitioned log, keyed by the
service, so that lines of one service stay in order. Two groups read the same log at their own
pace: `archive` writes files, `alerts` looks for errors. A third could start tomorrow, and read
everything from the beginning.
"""

import logging
import os
import tempfile
from pathlib import Path

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
LOG = "service-logs"


class BrokerHandler(logging.Handler):
    """Appends what is logged to the broker's log, under the name of the logger."""

    def __init__(self, channel):
        super().__init__()
        self.channel = channel

    def emit(self, record):
        properties = pika.BasicProperties(headers={"level": record.levelname})
        self.channel.basic_publish(LOG, record.name, self.format(record).encode(), properties)


def read(connection, group, count):
    """What this group has not seen yet; an ack moves the group on. (A real one would not stop.)"""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    where = {"x-group": group, "x-stream-offset": "first"}
    for method, properties, body in channel.consume(LOG, arguments=where):
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
        keep = {"x-queue-type": "stream", "x-partitions": 3, "x-max-age": "7D"}
        channel.queue_declare(LOG, durable=True, arguments=keep)
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
