"""Lesson 4: selecting messages by routing key.

A direct exchange compares the routing key of a message with the keys of its bindings. A queue can
have several bindings: a watcher of `error` and `warning` binds its queue twice. The broker drops
a message that matches no binding.
"""

import argparse
import os

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
EXCHANGE = "lesson-4-reports"
LEVELS = ("info", "warning", "error")


def report(channel, level, text):
    channel.basic_publish(EXCHANGE, routing_key=level, body=text.encode())
    print(f"reported {level}: {text}")


def watch(channel, levels, count):
    own_queue = channel.queue_declare("", exclusive=True).method.queue
    for level in levels:
        channel.queue_bind(own_queue, EXCHANGE, routing_key=level)
    print(f"watching {', '.join(levels)}", flush=True)
    for number, (method, _properties, body) in enumerate(
        channel.consume(own_queue, auto_ack=True), start=1
    ):
        print(f"{method.routing_key}: {body.decode()}", flush=True)
        if number == count:
            break
    channel.cancel()


def main():
    parser = argparse.ArgumentParser(description="Lesson 4: selecting messages by routing key")
    roles = parser.add_subparsers(dest="role", required=True)
    reporter = roles.add_parser("report")
    reporter.add_argument("level", choices=LEVELS)
    reporter.add_argument("text")
    watcher = roles.add_parser("watch")
    watcher.add_argument("levels", nargs="+", choices=LEVELS)
    watcher.add_argument("--count", type=int)
    options = parser.parse_args()

    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, exchange_type="direct")
        if options.role == "report":
            report(channel, options.level, options.text)
        else:
            watch(channel, options.levels, options.count)


if __name__ == "__main__":
    main()
