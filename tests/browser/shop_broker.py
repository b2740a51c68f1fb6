"""A broker with the exchanges, queues, log, policy and users of a shop, and with light traffic.

They are in the virtual host `shop`. Tests that change something use virtual hosts of their own, so
that pages show the same objects in any order of tests. Clients run on threads of the test process
until `stop_clients`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pika.exceptions

from tests.support.brokers import Target

SHOP = "shop"
LOG = "clicks"
GROUP = "billing"
TRACED = "order-1"
TICK_SECONDS = 0.25
EXCHANGES = {"orders": "topic", "audit": "fanout", "mail": "direct", "tenants": "headers"}
FULL_ACCESS = {"configure": ".*", "write": ".*", "read": ".*"}


def escaped(name: str) -> str:
    return quote(name, safe="")


@dataclass
class Api:
    """The HTTP API as administrator. Paths are given as raw segments."""

    client: httpx.Client

    def call(self, method: str, *segments: str, body: Any = None, **query: Any) -> Any:
        path = "/api/" + "/".join(escaped(segment) for segment in segments)
        response = self.client.request(method, path, json=body, params=query)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    def get(self, *segments: str, **query: Any) -> Any:
        return self.call("GET", *segments, **query)

    def put(self, *segments: str, body: Any = None) -> None:
        self.call("PUT", *segments, body=body or {})

    def post(self, *segments: str, body: Any = None) -> Any:
        return self.call("POST", *segments, body=body or {})

    def delete(self, *segments: str) -> None:
        self.call("DELETE", *segments)

    def has(self, *segments: str) -> bool:
        path = "/api/" + "/".join(escaped(segment) for segment in segments)
        return self.client.get(path).status_code == 200

    def names(self, *segments: str) -> set[str]:
        return {row["name"] for row in self.get(*segments)}

    @contextlib.contextmanager
    def vhost(self, name: str) -> Iterator[str]:
        """A temporary virtual host to which the administrator has access."""
        self.put("vhosts", name)
        self.put("permissions", name, "guest", body=FULL_ACCESS)
        yield name
        self.delete("vhosts", name)


def connect(target: Target, vhost: str, name: str) -> pika.BlockingConnection:
    credentials = pika.PlainCredentials(target.user, target.password)
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            target.host,
            target.port,
            vhost,
            credentials,
            client_properties={"connection_name": name},
        )
    )


@dataclass
class ShopBroker:
    target: Target
    api: Api
    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.target.http_port}"

    def connect(self, vhost: str, name: str = "test") -> pika.BlockingConnection:
        return connect(self.target, vhost, name)

    def run(self, work: Callable[[ShopBroker], None]) -> None:
        thread = threading.Thread(target=work, args=(self,), daemon=True)
        thread.start()
        self.threads.append(thread)

    def stop_clients(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(60)


def build(target: Target, client: httpx.Client) -> ShopBroker:
    broker = ShopBroker(target, Api(client))
    broker.api.put("vhosts", SHOP, body={"description": "The shop's orders"})
    broker.api.put("permissions", SHOP, "guest", body=FULL_ACCESS)
    broker.api.put("users", "anna", body={"password": "anna", "tags": "monitoring"})
    broker.api.put("users", "kiosk", body={"password": "kiosk", "tags": ""})
    broker.api.put("permissions", SHOP, "anna", body=FULL_ACCESS)
    broker.api.put("policies", SHOP, "shorten", body=POLICY)
    connection = broker.connect(SHOP, "setup")
    channel = connection.channel()
    channel.confirm_delivery()
    _declare(channel)
    _fill_log(channel)
    for number in range(30):
        _publish(channel, number)
    connection.close()
    for work in (_publisher, _worker, _reader):
        broker.run(work)
    return broker


POLICY = {
    "pattern": "^orders\\.",
    "definition": {"max-length": 100_000},
    "priority": 5,
    "apply-to": "queues",
}


def _declare(channel: Any) -> None:
    for name, kind in EXCHANGES.items():
        channel.exchange_declare(name, kind, durable=True)
    channel.exchange_declare("dead", "fanout", durable=True)
    channel.exchange_bind("audit", "orders", "#")
    channel.exchange_bind("mail", "orders", "order.created.*")
    dead = {"x-dead-letter-exchange": "dead", "x-max-length": 100_000}
    _queue(channel, "orders.eu", dead, ("orders", "order.*.eu"))
    _queue(channel, "orders.us", {"x-message-ttl": 3_600_000}, ("orders", "order.*.us"))
    _queue(channel, "invoices", {"x-queue-type": "quorum"}, ("orders", "order.paid.#"))
    _queue(channel, "orders.all", {}, ("audit", ""))
    _queue(channel, "welcome", {"x-max-priority": 5}, ("mail", "order.created.eu"))
    _queue(channel, "dead.letters", {}, ("dead", ""))
    _queue(channel, "acme", {})
    channel.queue_bind("acme", "tenants", "", {"x-match": "all", "tenant": "acme"})


def _queue(channel: Any, name: str, arguments: dict[str, Any], *bindings: tuple[str, str]) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)
    for exchange, key in bindings:
        channel.queue_bind(name, exchange, key)


def _fill_log(channel: Any) -> None:
    arguments = {"x-queue-type": "stream", "x-partitions": 3, "x-max-age": "7D"}
    channel.queue_declare(LOG, durable=True, arguments=arguments)
    for number in range(200):
        body = json.dumps({"user": number % 17, "page": f"/item/{number}"})
        channel.basic_publish(LOG, f"user-{number % 17}", body)


def _publish(channel: Any, number: int) -> None:
    event, place = ("created", "paid", "shipped")[number % 3], ("eu", "us")[number % 2]
    body = {"order": number, "total": round(number * 1.7, 2), "items": [{"sku": "A-1", "n": 2}]}
    properties = pika.BasicProperties(
        content_type="application/json",
        message_id=f"order-{number}",
        delivery_mode=2,
        headers={"tenant": ("acme", "globex")[number % 2]},
    )
    channel.basic_publish("orders", f"order.{event}.{place}", json.dumps(body), properties)


def _publisher(broker: ShopBroker) -> None:
    connection = broker.connect(SHOP, "shop-web")
    channel = connection.channel()
    channel.confirm_delivery()
    for number in itertools.count(30):
        if broker.stop.wait(TICK_SECONDS):
            break
        _publish(channel, number)
    connection.close()


def _worker(broker: ShopBroker) -> None:
    """Consumes from three queues. `invoices` and `welcome` grow, so that the overview warns."""
    connection = broker.connect(SHOP, "worker")
    channel = connection.channel()
    channel.basic_qos(prefetch_count=20)

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if method.delivery_tag % 25 == 0:
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            channel.basic_ack(method.delivery_tag)

    for name in ("orders.eu", "orders.us", "orders.all"):
        channel.basic_consume(name, on_message, consumer_tag=f"worker on {name}")
    while not broker.stop.is_set():
        connection.process_data_events(TICK_SECONDS)
    connection.close()


def _reader(broker: ShopBroker) -> None:
    """A member of the log's group that acknowledges 90 of 200 records and then waits."""
    connection = broker.connect(SHOP, "log-reader")
    channel = connection.channel()
    channel.basic_qos(prefetch_count=30)
    seen = itertools.count(1)

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if next(seen) <= 90:
            channel.basic_ack(method.delivery_tag)

    arguments = {"x-group": GROUP, "x-stream-offset": "first"}
    channel.basic_consume(LOG, on_message, arguments=arguments, consumer_tag="reader")
    while not broker.stop.is_set():
        connection.process_data_events(TICK_SECONDS)
    connection.close()
