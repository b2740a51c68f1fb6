"""Lesson 1: a queue between two programs.

Sender and receiver do not know each other, and neither needs the other to be running: both use
the same queue. Both declare it, because either may start first, and declaring an existing queue
changes nothing.
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
