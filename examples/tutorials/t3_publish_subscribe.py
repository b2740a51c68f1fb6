"""Lesson 3: every subscriber gets a copy.

A publisher publishes to an exchange, never to a queue. A fanout exchange copies each message to
every queue bound to it, so each subscriber declares its own queue: the broker generates the name,
and the queue is `exclusive`, so it is deleted with the subscriber's connection. A subscriber does
not receive messages published before it was bound.
"""

import argparse
import os

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
EXCHANGE = "lesson-3-news"


def publish(channel, text):
    channel.basic_publish(EXCHANGE, routing_key="", body=text.encode())
    print(f"published: {text}")


def listen(channel, count):
    own_queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(own_queue, EXCHANGE)
    print(f"listening on {own_queue}", flush=True)
    for number, (_method, _properties, body) in enumerate(
        channel.consume(own_queue, auto_ack=True), start=1
    ):
        print(f"received: {body.decode()}", flush=True)
        if number == count:
            break
    channel.cancel()


def main():
    parser = argparse.ArgumentParser(description="Lesson 3: every subscriber gets a copy")
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("publish").add_argument("text")
    roles.add_parser("listen").add_argument("--count", type=int)
    options = parser.parse_args()

    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, exchange_type="fanout")
        if options.role == "publish":
            publish(channel, options.text)
        else:
            listen(channel, options.count)


if __name__ == "__main__":
    main()
