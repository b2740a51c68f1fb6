"""Lesson 3: everybody gets a copy.

A publisher speaks to an exchange, never to a queue. A fanout exchange copies each message to
every queue bound to it, so each listener brings a queue of its own: the broker makes up the
name, and `exclusive` ties its life to the listener's connection. Who listens later has missed
what was said before.
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
        print(f"heard: {body.decode()}", flush=True)
        if number == count:
            break
    channel.cancel()


def main():
    parser = argparse.ArgumentParser(description="Lesson 3: everybody gets a copy")
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
