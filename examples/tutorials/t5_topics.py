"""Lesson 5: selecting messages by pattern.

Routing keys of a topic exchange are words separated by dots, here
`<region>.<species>.<what happened>`. In a binding, `*` matches exactly one word and `#` any number
of words: `north.#` matches one region, `*.hare.*` one species everywhere, `#` everything.
"""

import argparse
import os

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
EXCHANGE = "lesson-5-sightings"


def announce(channel, key, text):
    channel.basic_publish(EXCHANGE, routing_key=key, body=text.encode())
    print(f"announced {key}: {text}")


def follow(channel, patterns, count):
    own_queue = channel.queue_declare("", exclusive=True).method.queue
    for pattern in patterns:
        channel.queue_bind(own_queue, EXCHANGE, routing_key=pattern)
    print(f"following {', '.join(patterns)}", flush=True)
    for number, (method, _properties, body) in enumerate(
        channel.consume(own_queue, auto_ack=True), start=1
    ):
        print(f"{method.routing_key}: {body.decode()}", flush=True)
        if number == count:
            break
    channel.cancel()


def main():
    parser = argparse.ArgumentParser(description="Lesson 5: selecting messages by pattern")
    roles = parser.add_subparsers(dest="role", required=True)
    announcer = roles.add_parser("announce")
    announcer.add_argument("key", help="for example north.hare.seen")
    announcer.add_argument("text")
    follower = roles.add_parser("follow")
    follower.add_argument("patterns", nargs="+", help="for example 'north.#' '*.hare.*'")
    follower.add_argument("--count", type=int)
    options = parser.parse_args()

    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, exchange_type="topic")
        if options.role == "announce":
            announce(channel, options.key, options.text)
        else:
            follow(channel, options.patterns, options.count)


if __name__ == "__main__":
    main()
