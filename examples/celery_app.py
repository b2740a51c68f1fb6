"""Celery with Leveret as its broker: nothing is different from RabbitMQ but the URL.

celery -A celery_app worker --pool=threads      in this folder, and in another terminal
python celery_app.py
"""

import os

from celery import Celery, chain, group

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672//")
app = Celery("celery_app", broker=URL, backend="rpc://")
app.conf.task_acks_late = True  # a task whose worker dies is done by another
app.conf.task_default_queue = "examples"


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


def main():
    print(f"1 + 2 = {add.delay(1, 2).get(timeout=30)}")
    print(f"(1 + 2) + 4 = {chain(add.s(1, 2), add.s(4))().get(timeout=30)}")
    sums = group(add.s(number, number) for number in range(5))().get(timeout=30)
    print(f"doubles: {sums}, all: {total.delay(sums).get(timeout=30)}")


if __name__ == "__main__":
    main()
