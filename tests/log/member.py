"""A group member as a program: writes every record to a file, then acks it. Its test kills it.

Arguments: port, file, name. Records in the file were processed; those that were not acked before
the kill may be processed again by another member, which is what the test checks.
"""

from __future__ import annotations

import sys

import pika
import pika.exceptions


def main() -> None:
    port, path, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    parameters = pika.ConnectionParameters("127.0.0.1", port)
    with open(path, "a", buffering=1) as notes:

        def note(channel, method, properties, body):
            headers = properties.headers
            notes.write(f"{headers['x-partition']} {headers['x-stream-offset']} {body.decode()}\n")
            channel.basic_ack(method.delivery_tag)

        arguments = {"x-group": "G", "x-stream-offset": "first"}
        try:
            channel = pika.BlockingConnection(parameters).channel()
            channel.basic_qos(prefetch_count=20)
            channel.basic_consume("orders", note, consumer_tag=name, arguments=arguments)
            channel.start_consuming()
        except (pika.exceptions.AMQPError, OSError):
            sys.exit(0)


main()
