"""Records that arrive in one read are stored and delivered as they are one by one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from leveret.launch import ThreadedBroker, in_process_settings
from leveret.model.run import Run
from tests.log.conftest import STREAM, declare
from tests.support import wire
from tests.support.rawclient import RawClient

COUNT = 200
PARTITIONS = 3
ADDRESSES = [
    ("", "log"),
    ("", "parts"),
    ("parts", "a"),
    ("parts", "b"),
    ("parts", ""),
    ("all", "k"),
]
KINDS: list[dict[str, Any]] = [
    {},
    {"delivery_mode": 2},
    {"delivery_mode": 2, "headers": {"x-partition": 1}},
    {"content_type": "text/plain", "headers": {"a": "b"}},
    {"headers": {"x-producer-id": "p", "x-producer-seq": 0}},
]


def traffic(seed: int) -> list[bytes]:
    """Encoded publishes, mostly several of the same kind in a row."""
    rng = random.Random(seed)
    publishes: list[bytes] = []
    while len(publishes) < COUNT:
        exchange, key = rng.choice(ADDRESSES)
        properties = rng.choice(KINDS)
        for _ in range(rng.randrange(1, 20)):
            if rng.random() < 0.1:
                properties = rng.choice(KINDS)
            headers = dict(properties.get("headers", {}))
            if "x-producer-seq" in headers:
                headers["x-producer-seq"] = len(publishes)
                properties = {"headers": headers}
            body = b"%d" % len(publishes) * rng.choice([0, 1, 1, 30])
            head = ContentHeader(0, len(body), Basic.Properties(**properties))
            content = wire.encode(1, head) + (wire.body(1, body) if body else b"")
            publishes.append(wire.publish(1, exchange, key) + content)
    return publishes[:COUNT]


def publish(directory: Path, pieces: list[bytes], together: bool) -> object:
    """Returns the confirms, and the content of all partitions."""
    with ThreadedBroker(in_process_settings(data_dir=directory)) as broker:
        with RawClient(*broker.amqp_address) as client:
            client.handshake("/")
            channel = client.channel()
            channel.declare("log", durable=True, arguments=STREAM)
            partitioned = {**STREAM, "x-partitions": PARTITIONS}
            channel.declare("parts", durable=True, arguments=partitioned)
            channel.exchange("all", "fanout")
            channel.bind("log", "all")
            channel.bind("parts", "all")
            channel.confirm_select()
            confirms: dict[int, str] = {}
            for data in [b"".join(pieces)] if together else pieces:
                client.send_bytes(data)
                expected = len(pieces) if together else len(confirms) + 1
                while len(confirms) < expected:
                    confirm = client.next_on(channel.number).decode()
                    first = 1 if confirm.multiple else confirm.delivery_tag
                    for number in range(first, confirm.delivery_tag + 1):
                        confirms.setdefault(number, confirm.name)
        assert broker.running is not None
        queues = broker.running.broker.vhosts["/"].queues
        names = ["log", *(f"parts-{number}" for number in range(PARTITIONS))]
        records = [queues[name].partition.read(0) for name in names]  # type: ignore[attr-defined]
        counts = [queues[name].counters.published for name in names]
    stored = [[(r.offset, *r[2:]) for r in partition] for partition in records]
    return sorted(confirms.items()), stored, counts


@pytest.mark.parametrize("seed", range(4))
def test_runs_are_stored_like_single_records(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    real = Run.has_header

    def has_header(run: Run, name: bytes) -> bool:
        lengths.append(len(run))
        return real(run, name)

    monkeypatch.setattr(Run, "has_header", has_header)
    pieces = traffic(seed)
    in_runs = publish(tmp_path / "together", pieces, together=True)
    assert max(lengths) > 3
    assert in_runs == publish(tmp_path / "single", pieces, together=False)


def test_records_of_one_chunk_differ_in_everything(home, channel, readers):
    """They are framed together: keys of all lengths, properties, and bodies beyond frame_max."""
    declare(channel, "log")
    channel.exchange_declare("all", "fanout")
    channel.queue_bind("log", "all")
    sent = []
    for number in range(60):
        exchange, key = ("all", "k" * (number // 10)) if number % 10 > 4 else ("", "log")
        headers = {"n": number} if number % 7 == 0 else None
        body = b"%d" % number * (100_000 if number in (17, 40) else number % 3)
        properties = pika.BasicProperties(headers=headers)
        channel.basic_publish(exchange, key, body, properties)
        sent.append((exchange, key, (headers or {}).get("n"), number, body))
    reader = readers("log", x_stream_offset="first", acks=False, prefetch=50).read(50)
    reader.channel.basic_nack(10, multiple=True, requeue=True)
    reader.read(60)
    received = [
        (
            method.exchange,
            method.routing_key,
            properties.headers.get("n"),
            properties.headers["x-stream-offset"],
            body,
        )
        for method, properties, body in reader.records
    ]
    assert received[:50] == sent[:50]
    assert received[50:60] == sent[:10]
    methods = [method for method, _, _ in reader.records]
    assert [method.delivery_tag for method in methods[:60]] == [*range(1, 61)]
    assert [method.redelivered for method in methods[:60]] == [False] * 50 + [True] * 10
