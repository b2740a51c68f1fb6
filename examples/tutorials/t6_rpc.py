"""Lesson 6: question and answer.

The asker brings an exclusive queue for the answers and names it in `reply_to`; a
`correlation_id` tells which answer belongs to which question, so many may be on their way at
once and come back in any order. The server needs to know neither in advance.

The service counts the steps of a number down to 1 by the Collatz rule.
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
    answered = 0

    def on_question(channel, method, properties, body):
        nonlocal answered
        steps = collatz_steps(int(body))
        channel.basic_publish(
            "",
            properties.reply_to,
            str(steps).encode(),
            pika.BasicProperties(correlation_id=properties.correlation_id),
        )
        channel.basic_ack(method.delivery_tag)
        print(f"answered: {int(body)} takes {steps} steps", flush=True)
        answered += 1
        if answered == count:
            channel.stop_consuming()

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(QUEUE, on_question)
    print("waiting for questions", flush=True)
    channel.start_consuming()


def ask(channel, numbers):
    replies = channel.queue_declare("", exclusive=True).method.queue
    open_questions = {}
    for number in numbers:
        ticket = str(uuid.uuid4())
        open_questions[ticket] = number
        channel.basic_publish(
            "",
            QUEUE,
            str(number).encode(),
            pika.BasicProperties(reply_to=replies, correlation_id=ticket),
        )
    for _method, properties, body in channel.consume(replies, auto_ack=True):
        number = open_questions.pop(properties.correlation_id)
        print(f"{number} takes {body.decode()} steps", flush=True)
        if not open_questions:
            break
    channel.cancel()


def main():
    parser = argparse.ArgumentParser(description="Lesson 6: question and answer")
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
