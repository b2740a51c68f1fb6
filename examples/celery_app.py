"""Celery with Leveret as its broker: the same as with RabbitMQ, except for the URL.

The program starts a worker, sends it some tasks and stops it:

    python examples/celery_app.py
"""

import os
import subprocess
import sys
from pathlib import Path

from celery import Celery, chain, group

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672//")
app = Celery("celery_app", broker=URL, backend="rpc://")
app.conf.task_acks_late = True  # if a worker dies, another one runs its task
app.conf.task_default_queue = "examples"


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


WORKER = ("celery", "-A", "celery_app", "worker", "--pool=threads", "--loglevel=ERROR")


def main():
    worker = subprocess.Popen([sys.executable, "-m", *WORKER], cwd=Path(__file__).parent)
    try:
        print(f"1 + 2 = {add.delay(1, 2).get(timeout=60)}")
        print(f"(1 + 2) + 4 = {chain(add.s(1, 2), add.s(4))().get(timeout=60)}")
        sums = group(add.s(number, number) for number in range(5))().get(timeout=60)
        print(f"doubles: {sums}, all: {total.delay(sums).get(timeout=60)}")
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
