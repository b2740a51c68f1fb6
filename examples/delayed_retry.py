"""Delayed retries: a failed job is tried again later, and dead-lettered after the last attempt.

A job that fails is published to a delayed exchange, which routes it back to its queue after a
delay: 0.1 seconds, then 0.2. After the last attempt the job is rejected, and the queue's
dead-letter exchange routes it to `jobs.failed`; the header `x-death` contains the reason.
"""

import os

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
ATTEMPTS = 3
FIRST_DELAY_MS = 100


def declare(channel):
    channel.exchange_declare(
        "jobs.later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
    )
    channel.queue_declare("jobs.failed", durable=True)
    channel.queue_declare(
        "jobs",
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "jobs.failed"},
    )
    channel.queue_bind("jobs", "jobs.later", "jobs")


def handle(channel, method, properties, body, do):
    """Run one job; if it fails, publish the next attempt before the ack. True if it is finished."""
    attempt = (properties.headers or {}).get("attempt", 1)
    try:
        do(body.decode(), attempt)
    except RuntimeError as error:
        print(f"{body.decode()}: attempt {attempt} failed: {error}")
        if attempt == ATTEMPTS:
            channel.basic_reject(method.delivery_tag, requeue=False)
            return True
        headers = {"attempt": attempt + 1, "x-delay": FIRST_DELAY_MS * 2 ** (attempt - 1)}
        retry = pika.BasicProperties(headers=headers, delivery_mode=2)
        channel.basic_publish("jobs.later", "jobs", body, retry)
        channel.basic_ack(method.delivery_tag)
        return False
    channel.basic_ack(method.delivery_tag)
    return True


def do(job, attempt):
    if job == "broken" or (job == "flaky" and attempt < 2):
        raise RuntimeError("service unavailable")
    print(f"{job}: done in attempt {attempt}")


def main():
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        declare(channel)
        jobs = ("easy", "flaky", "broken")
        for job in jobs:
            channel.basic_publish("", "jobs", job.encode(), pika.BasicProperties(delivery_mode=2))
        channel.basic_qos(prefetch_count=10)
        finished = 0
        for delivery in channel.consume("jobs"):
            finished += handle(channel, *delivery, do)
            if finished == len(jobs):
                break
        channel.cancel()
        _, properties, body = channel.basic_get("jobs.failed", auto_ack=True)
        print(f"{body.decode()}: given up, {properties.headers['x-death'][0]['reason']}")


if __name__ == "__main__":
    main()
