"""Lesson 1: a queue between two programs.

The sender does not know who will read, the receiver does not know who wrote, and neither
needs the other to be running: the queue is where they meet. Both declare it, because either
may come first, and declaring what exists changes nothing.
"""

import argparse
import os

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
QUEUE = "lesson-1-hello"


def send(channel, text):
    # The default exchange "" delivers to the queue named by the routing key.
    channel.basic_publish(exchange="", routing_key=QUEUE, body=text.encode())
    print(f"sent: {text}")


def receive(channel, count):
    print("waiting for messages", flush=True)
    for number, (_method, _properties, body) in enumerate(
        channel.consume(QUEUE, auto_ack=True), start=1
    ):
        print(f"received: {body.decode()}", flush=True)
        if number == count:
            break
    channel.cancel()


def main():
    parser = argparse.ArgumentParser(description="Lesson 1: a queue between two programs")
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("send").add_argument("text", nargs="?", default="Hello, burrow")
    roles.add_parser("receive").add_argument("--count", type=int)
    options = parser.parse_args()

    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE)
        if options.role == "send":
            send(channel, options.text)
        else:
            receive(channel, options.count)


if __name__ == "__main__":
    main()
