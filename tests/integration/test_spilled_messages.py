"""Transient messages beyond the window are on disk, in order, and gone after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pamqp.commands import Basic, Queue

from leveret.broker.topology import TRANSIENT_WINDOWS
from leveret.queues.storage.spill import FOLDER
from leveret.testing import LeveretBroker
from tests.support.polling import wait_until
from tests.support.rawclient import RawChannel, RawClient

COUNT = 3_000
WINDOW = 50


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LeveretBroker]:
    with LeveretBroker(
        data_dir=tmp_path, http_enabled=True, queue_window=WINDOW, history="off"
    ) as broker:
        yield broker


@pytest.fixture
def channel(broker: LeveretBroker) -> Iterator[RawChannel]:
    with RawClient(*broker.amqp_address) as client:
        yield client.handshake("/").channel()


def publish(channel: RawChannel, queue: str, *, persistent: bool = False) -> list[bytes]:
    """Every third message is persistent if `persistent`."""
    bodies = [b"%d" % number for number in range(COUNT)]
    for number, body in enumerate(bodies):
        mode = 2 if persistent and number % 3 == 0 else 1
        channel.publish("", queue, body, delivery_mode=mode)
    channel.wait_ready(queue, COUNT)
    return bodies


def queue_row(broker: LeveretBroker, queue: str) -> dict[str, int]:
    url = f"{broker.http_url}/api/queues/%2F/{queue}"
    row: dict[str, int] = httpx.get(url, auth=("guest", "guest"), timeout=60).json()
    return row


@pytest.mark.parametrize("durable", [False, True])
def test_messages_beyond_the_window_are_on_disk_and_in_order(
    broker: LeveretBroker, channel: RawChannel, tmp_path: Path, durable: bool
) -> None:
    channel.declare("q", durable=durable)
    bodies = publish(channel, "q", persistent=durable)
    wait_until(lambda: len(list((tmp_path / FOLDER).iterdir())) > 0)
    row = queue_row(broker, "q")
    assert row["messages"] == COUNT
    window = WINDOW if durable else WINDOW * TRANSIENT_WINDOWS
    assert row["messages_paged_out"] >= COUNT - window - 1
    browse = f"{broker.http_url}/api/queues/%2F/q/browse?offset={COUNT - 20}&count=20"
    seen = httpx.get(browse, auth=("guest", "guest"), timeout=60).json()
    assert [message["payload"].encode() for message in seen] == bodies[-20:]
    channel.qos(10)
    channel.consume("q")
    got = []
    for delivery in channel.deliveries(10):
        got.append(delivery.body)
        channel.nack(delivery.tag, requeue=True)
    assert got == bodies[:10]
    got = []
    while len(got) < COUNT:
        delivery = channel.deliver()
        got.append(delivery.body)
        assert delivery.redelivered == (delivery.body in bodies[:10])
        channel.ack(delivery.tag)
    assert got == bodies
    wait_until(lambda: len(list((tmp_path / FOLDER).iterdir())) <= 1)


def test_purge_and_delete_remove_the_files(
    broker: LeveretBroker, channel: RawChannel, tmp_path: Path
) -> None:
    for queue in ("purged", "deleted"):
        channel.declare(queue, auto_delete=True)
        publish(channel, queue)
    assert channel.call(Queue.Purge(queue="purged")).message_count == COUNT
    assert channel.call(Queue.Delete(queue="deleted")).message_count == COUNT
    wait_until(lambda: not list((tmp_path / FOLDER).iterdir()))
    publish(channel, "purged")
    channel.call(Basic.Consume(queue="purged", no_ack=True))
    assert channel.deliveries(COUNT)[-1].body == b"%d" % (COUNT - 1)


@pytest.mark.parametrize("is_killed", [True, False])
def test_spilled_messages_are_gone_after_a_restart(
    broker: LeveretBroker, channel: RawChannel, tmp_path: Path, is_killed: bool
) -> None:
    """And so are their files; the persistent messages between them are still there."""
    channel.declare("q", durable=True)
    bodies = publish(channel, "q", persistent=True)
    channel.declare("later", durable=True)  # the answer means that everything before is on disk
    assert list((tmp_path / FOLDER).iterdir())
    if is_killed:
        broker.kill()
    broker.restart()
    assert not (tmp_path / FOLDER).exists()
    with RawClient(*broker.amqp_address) as client:
        channel = client.handshake("/").channel()
        channel.wait_ready("q", COUNT // 3)
        assert channel.drain("q") == bodies[::3]
