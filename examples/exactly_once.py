"""Read, process, write: exactly once, also when the worker dies in the middle.

Reading an order and writing its invoice happen in one transaction: the invoice is routed and the
order acknowledged by the same `tx.commit`, which is on disk as a whole or not at all. A worker that
dies before it leaves no invoice behind, and its order comes again. The order itself is published
with a number (`x-producer-seq`) or an id that the broker knows it by, so that a publisher that is
not sure whether its message arrived may simply send it again.
"""

import os

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")


def connect():
    return pika.BlockingConnection(pika.URLParameters(URL))


def declare(channel):
    once = {"x-message-deduplication": True}
    channel.queue_declare("orders", durable=True, arguments=once)
    channel.queue_declare("invoices", durable=True)


def publish(channel, number):
    """Confirmed publishing; sending the same order again changes nothing."""
    properties = pika.BasicProperties(
        delivery_mode=2, headers={"x-deduplication-header": f"order-{number}"}
    )
    channel.basic_publish("", "orders", str(number).encode(), properties)


def work(connection, dies_before_commit=False):
    """One order, if there is one; False when there is none."""
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
        while (found := channel.basic_get("invoices", auto_ack=True))[0]:
            print(found[2].decode())


if __name__ == "__main__":
    main()
