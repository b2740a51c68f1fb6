"""Event sourcing: events are the source of truth, and state is computed by replaying them.

Every change of an account is an event in the log `account-events`, keyed by account, so that the
events of one account stay in order. The state of each account is written to `accounts`, a compacted
log: it keeps the newest record of every key, and a record without a body deletes its key. A program
that starts later reads this small log instead of all events.
"""

import json
import os

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
EVENTS, STATE = "account-events", "accounts"


def declare(channel):
    log = {"x-queue-type": "stream", "x-partitions": 2}
    channel.queue_declare(EVENTS, durable=True, arguments=log)
    channel.queue_declare(STATE, durable=True, arguments=log | {"x-cleanup-policy": "compact"})


def record(channel, account, kind, amount=0):
    """Append an event. Events are never changed or deleted."""
    channel.basic_publish(EVENTS, account, json.dumps({"kind": kind, "amount": amount}))


def apply(balance, event):
    """The business logic as a pure function: the state after an event."""
    match event["kind"]:
        case "deposited":
            return (balance or 0) + event["amount"]
        case "withdrawn":
            return (balance or 0) - event["amount"]
        case "closed":
            return None
    raise ValueError(event)


def read(connection, log, count):
    """The first `count` records of a log, in order within each key. (A real reader never stops.)"""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    for method, _, body in channel.consume(log, arguments={"x-stream-offset": "first"}):
        channel.basic_ack(method.delivery_tag)
        yield method.routing_key, body
        if method.delivery_tag == count:
            break
    channel.close()


def project(connection, channel, count):
    """Replay the events and write the resulting state."""
    balances = {}
    for account, body in read(connection, EVENTS, count):
        balances[account] = apply(balances.get(account), json.loads(body))
    for account, balance in balances.items():
        channel.basic_publish(STATE, account, b"" if balance is None else str(balance).encode())


def load(connection, count):
    """The state, read from the compacted log only."""
    newest = dict(read(connection, STATE, count))
    return {account: int(body) for account, body in sorted(newest.items()) if body}


def main():
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        declare(channel)
        record(channel, "ann", "deposited", 100)
        record(channel, "bob", "deposited", 50)
        record(channel, "ann", "withdrawn", 30)
        record(channel, "eve", "deposited", 10)
        project(connection, channel, count=4)
        print(load(connection, count=3))
        record(channel, "eve", "closed")
        record(channel, "bob", "deposited", 5)
        project(connection, channel, count=6)
        print(load(connection, count=6))


if __name__ == "__main__":
    main()
