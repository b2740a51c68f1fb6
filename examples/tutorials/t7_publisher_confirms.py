"""Lesson 7: publisher confirms.

In confirm mode the broker confirms every publish: with an ack when all queues have stored the
message, with a nack when the broker could not accept it. `single` waits for each confirm before
the next publish, which is simple and slow. `pipelined` publishes many messages and removes them
from a set as their confirms arrive; one confirm may cover all messages up to its number
(`multiple`). `unroutable` publishes a message as `mandatory`, so that the broker returns it instead
of dropping it when no queue would receive it.
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
            # In confirm mode this returns after the confirm, or raises.
            channel.basic_publish("", queue, str(number).encode(), PERSISTENT)
        messages = channel.queue_declare(queue, passive=True).method.message_count
    print(f"confirmed {count} one by one, the queue holds {messages}")


class Pipeline:
    """Publishes all messages on pika's event-driven connection, then waits for the confirms."""

    def __init__(self, count):
        self.count = count
        self.unconfirmed = set()
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
        self.channel.confirm_delivery(self.on_confirm, callback=self.publish_all)

    def publish_all(self, _frame):
        for number in range(1, self.count + 1):
            self.unconfirmed.add(number)
            self.channel.basic_publish("", self.queue, str(number).encode(), PERSISTENT)

    def on_confirm(self, frame):
        tag = frame.method.delivery_tag
        confirmed = {n for n in self.unconfirmed if n <= tag} if frame.method.multiple else {tag}
        self.unconfirmed -= confirmed
        if isinstance(frame.method, pika.spec.Basic.Nack):
            self.nacked += len(confirmed)
        if not self.unconfirmed:
            self.connection.add_on_close_callback(lambda *_: self.connection.ioloop.stop())
            self.connection.close()


def pipelined(count):
    pipeline = Pipeline(count)
    began = time.perf_counter()
    pipeline.run()
    seconds = time.perf_counter() - began
    print(f"confirmed {count - pipeline.nacked} in a pipeline, {pipeline.nacked} refused")
    print(f"that took {seconds:.3f} s")


def unroutable(_count):
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish("", "lesson-7-nobody", b"anyone?", mandatory=True)
        except pika.exceptions.UnroutableError as error:
            returned = error.messages[0]
            print(f"returned: {returned.body.decode()} ({returned.method.reply_text})")


def main():
    parser = argparse.ArgumentParser(description="Lesson 7: publisher confirms")
    parser.add_argument("role", choices=("single", "pipelined", "unroutable"))
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    {"single": single, "pipelined": pipelined, "unroutable": unroutable}[options.role](
        options.count
    )


if __name__ == "__main__":
    main()
