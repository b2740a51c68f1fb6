"""Read, process, write: exactly once, even if the worker dies in between.

Consuming an order and publishing its invoice are one transaction: the same `tx.commit` routes the
invoice and acknowledges the order, and it is written to disk as a whole or not at all. If a worker
dies before the commit, there is no invoice, and the order is redelivered. The order itself is
published with an id for deduplication, so that a publisher that does not know whether a message
arrived can simply publish it again.
"""

import os

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")


def connect():
    return pika.BlockingConnection(pika.URLParameters(URL))


def declare(channel):
    deduplicated = {"x-message-deduplication": True}
    channel.queue_declare("orders", durable=True, arguments=deduplicated)
    channel.queue_declare("invoices", durable=True)


def publish(channel, number):
    """Publish an order; publishing the same order again has no effect."""
    properties = pika.BasicProperties(
        delivery_mode=2, headers={"x-deduplication-header": f"order-{number}"}
    )
    channel.basic_publish("", "orders", str(number).encode(), properties)


def work(connection, dies_before_commit=False):
    """Process one order; False if the queue is empty."""
    channel = connection.channel()
    channel.tx_select()
    method, _, body = channel.basic_get("orders")
    if method is None:
        return False
    invoice = f"invoice for order {body.decode()}".encode()
    channel.basic_publish("", "invoices", invoice, pika.BasicProperties(delivery_mode=2))
    channel.basic_ack(method.delivery_tag)
    if dies_before_commit:
        connection.close()
        return True
    channel.tx_commit()
    channel.close()
    return True


def main():
    with connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        declare(channel)
        for number in (1, 2, 2, 3, 1):
            publish(channel, number)
    work(connect(), dies_before_commit=True)
    with connect() as connection:
        while work(connection):
            pass
        channel = connection.channel()
        while (message := channel.basic_get("invoices", auto_ack=True))[0]:
            print(message[2].decode())


if __name__ == "__main__":
    main()
