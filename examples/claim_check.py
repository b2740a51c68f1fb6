"""Claim check: a large payload is kept in a store, and the message contains a reference to it.

A broker handles many small messages better than a few huge ones, and refuses messages larger than
`max_message_size`. So the publisher stores the payload where both sides can reach it (a folder
here, an object store in production) under the hash of its content, and publishes hash and size. The
consumer fetches the payload, checks it and acknowledges the message. Publishing the same content
twice stores it once.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path

import pika

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")
LARGE = 64 * 1024


class Store:
    def __init__(self, folder):
        self.folder = folder

    def put(self, payload):
        name = hashlib.sha256(payload).hexdigest()
        part = self.folder / f"{name}.part"
        part.write_bytes(payload)
        part.rename(self.folder / name)  # readers never see a partial file
        return name

    def get(self, name):
        payload = (self.folder / name).read_bytes()
        if hashlib.sha256(payload).hexdigest() != name:
            raise ValueError(f"{name} is damaged")
        return payload


def send(channel, store, payload):
    if len(payload) < LARGE:
        channel.basic_publish("", "videos", payload)
        return
    ticket = json.dumps({"claim": store.put(payload), "size": len(payload)})
    properties = pika.BasicProperties(content_type="application/vnd.claim+json")
    channel.basic_publish("", "videos", ticket.encode(), properties)


def receive(channel, store):
    method, properties, body = channel.basic_get("videos")
    size = len(body)
    if properties.content_type == "application/vnd.claim+json":
        body = store.get(json.loads(body)["claim"])
    print(f"message of {size} bytes, payload of {len(body)} bytes")
    channel.basic_ack(method.delivery_tag)


def main():
    store = Store(Path(tempfile.mkdtemp()))
    with pika.BlockingConnection(pika.URLParameters(URL)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("videos", durable=True)
        send(channel, store, b"short")
        send(channel, store, b"a long one" * 3_000_000)
        receive(channel, store)
        receive(channel, store)


if __name__ == "__main__":
    main()
