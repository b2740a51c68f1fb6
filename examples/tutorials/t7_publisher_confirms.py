"""Lesson 7: knowing that the broker has it.

With confirms switched on, the broker answers every publish: an ack when the message is safe in
all its queues, a nack when it could not take it. `single` waits for each answer in turn, which
is simple and slow. `pipelined` keeps many on their way and ticks them off as the answers come;
one answer may cover all numbers up to its own (`multiple`). `unroutable` marks a message
`mandatory`, so that one nobody would receive comes back instead of vanishing.
"""

import argparse
import os
import time

import pika
import pika.exceptions

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)


def single(count):
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.confirm_delivery()
        for number in range(count):
            # In confirm mode this returns when the broker has answered, or raises.
            channel.basic_publish("", queue, str(number).encode(), PERSISTENT)
        held = channel.queue_declare(queue, passive=True).method.message_count
    print(f"confirmed {count} one by one, the queue holds {held}")


class Pipeline:
    """Publishes everything at once on pika's event-driven connection, then awaits the acks."""

    def __init__(self, count):
        self.count = count
        self.open_numbers = set()
        self.nacked = 0
        self.connection = pika.SelectConnection(
            pika.URLParameters(URL),
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=self.on_channel_open
            ),
        )

    def run(self):
        self.connection.ioloop.start()

    def on_channel_open(self, channel):
        self.channel = channel
        channel.queue_declare("", exclusive=True, callback=self.on_queue)

    def on_queue(self, frame):
        self.queue = frame.method.queue
        self.channel.confirm_delivery(self.on_answer, callback=self.publish_all)

    def publish_all(self, _frame):
        for number in range(1, self.count + 1):
            self.open_numbers.add(number)
            self.channel.basic_publish("", self.queue, str(number).encode(), PERSISTENT)

    def on_answer(self, frame):
        tag = frame.method.delivery_tag
        settled = {n for n in self.open_numbers if n <= tag} if frame.method.multiple else {tag}
        self.open_numbers -= settled
        if isinstance(frame.method, pika.spec.Basic.Nack):
            self.nacked += len(settled)
        if not self.open_numbers:
            self.connection.add_on_close_callback(lambda *_: self.connection.ioloop.stop())
            self.connection.close()


def pipelined(count):
    pipeline = Pipeline(count)
    began = time.perf_counter()
    pipeline.run()
    took = time.perf_counter() - began
    print(f"confirmed {count - pipeline.nacked} in a pipeline, {pipeline.nacked} refused")
    print(f"that took {took:.3f} s")


def unroutable(_count):
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("", "lesson-7-nobody", b"anyone?", mandatory=True)
        except pika.exceptions.UnroutableError as error:
            returned = error.messages[0]
            print(f"came back: {returned.body.decode()} ({returned.method.reply_text})")


def main():
    parser = argparse.ArgumentParser(description="Lesson 7: knowing that the broker has it")
    parser.add_argument("role", choices=("single", "pipelined", "unroutable"))
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    {"single": single, "pipelined": pipelined, "unroutable": unroutable}[options.role](
        options.count
    )


if __name__ == "__main__":
    main()
