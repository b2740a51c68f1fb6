"""Lesson 2: sharing work among workers.

Start as many workers as you like: each task is delivered to one of them. A worker acknowledges a
task when it is *done*; if the worker dies before, the broker redelivers the task to another one.
The queue is durable and the tasks are persistent, so a restart of the broker loses none. With a
prefetch of one, the next task goes to a worker that is free, not to the next one in turn.

Every dot in a task takes a tenth of a second of work.
"""

import argparse
import os
import time

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
QUEUE = "lesson-2-tasks"
PERSISTENT = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)


def submit(channel, tasks):
    for task in tasks:
        channel.basic_publish("", QUEUE, task.encode(), PERSISTENT)
        print(f"submitted: {task}")


def work(channel, count):
    done = 0

    def on_task(channel, method, _properties, body):
        nonlocal done
        task = body.decode()
        print(f"started: {task}", flush=True)
        time.sleep(task.count(".") / 10)
        print(f"done: {task}", flush=True)
        channel.basic_ack(method.delivery_tag)
        done += 1
        if done == count:
            channel.stop_consuming()

    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(QUEUE, on_task)
    print("waiting for tasks", flush=True)
    channel.start_consuming()


def main():
    parser = argparse.ArgumentParser(description="Lesson 2: sharing work among workers")
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("submit").add_argument("tasks", nargs="+")
    roles.add_parser("work").add_argument("--count", type=int)
    options = parser.parse_args()

    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        if options.role == "submit":
            submit(channel, options.tasks)
        else:
            work(channel, options.count)


if __name__ == "__main__":
    main()
