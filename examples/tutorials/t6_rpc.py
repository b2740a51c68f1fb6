"""Lesson 6: request and reply.

The client declares an exclusive queue for the replies and names it in `reply_to`; the
`correlation_id` tells which reply belongs to which request, so several requests can be outstanding
and replies can arrive in any order. The server knows neither in advance.

The service counts the steps from a number to 1 in the Collatz sequence.
"""

import argparse
import os
import uuid

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
QUEUE = "lesson-6-collatz"


def collatz_steps(number):
    steps = 0
    while number > 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


def serve(channel, count):
    replies = 0

    def on_request(channel, method, properties, body):
        nonlocal replies
        steps = collatz_steps(int(body))
        channel.basic_publish(
            "",
            properties.reply_to,
            str(steps).encode(),
            pika.BasicProperties(correlation_id=properties.correlation_id),
        )
        channel.basic_ack(method.delivery_tag)
        print(f"answered: {int(body)} takes {steps} steps", flush=True)
        replies += 1
        if replies == count:
            channel.stop_consuming()

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(QUEUE, on_request)
    print("waiting for requests", flush=True)
    channel.start_consuming()


def ask(channel, numbers):
    replies = channel.queue_declare("", exclusive=True).method.queue
    pending = {}
    for number in numbers:
        correlation_id = str(uuid.uuid4())
        pending[correlation_id] = number
        channel.basic_publish(
            "",
            QUEUE,
            str(number).encode(),
            pika.BasicProperties(reply_to=replies, correlation_id=correlation_id),
        )
    for _method, properties, body in channel.consume(replies, auto_ack=True):
        number = pending.pop(properties.correlation_id)
        print(f"{number} takes {body.decode()} steps", flush=True)
        if not pending:
            break
    channel.cancel()


def main():
    parser = argparse.ArgumentParser(description="Lesson 6: request and reply")
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("serve").add_argument("--count", type=int)
    roles.add_parser("ask").add_argument("numbers", nargs="+", type=int)
    options = parser.parse_args()

    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE)
        if options.role == "serve":
            serve(channel, options.count)
        else:
            ask(channel, options.numbers)


if __name__ == "__main__":
    main()
