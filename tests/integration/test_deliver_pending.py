"""A get or purge in the tick of a publish finds no message that an idle consumer can take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from leveret.broker.broker import Broker
from leveret.broker.messages import browse
from leveret.http_admin.rows.queues import queue_row
from leveret.launch import ThreadedBroker, in_process_settings
from leveret.queues.port import Queue
from leveret.testing import LeveretBroker
from tests.support import wire
from tests.support.rawclient import RawClient

PUBLISH = wire.publish(1, "", "q") + wire.content_header(1, 1) + wire.body(1, b"x")


def row(broker: Broker, queue: Queue) -> int:
    return queue_row(broker, broker.vhosts["/"], queue)["messages_ready"]


def purge(broker: Broker, queue: Queue) -> int:
    return broker.vhosts["/"].queue("q").purge()


def delete(broker: Broker, queue: Queue) -> int:
    return broker.vhosts["/"].delete_queue("q", if_empty=True)


def get(broker: Broker, queue: Queue) -> int:
    return int(queue.basic_get(0, True) is not None)


def browsed(broker: Broker, queue: Queue) -> int:
    coroutine = browse(broker, queue, 0, 10)
    with pytest.raises(StopIteration) as result:  # it has nothing to wait for
        coroutine.send(None)
    return len([message for message in result.value.value if not message.is_unacked])


@pytest.mark.parametrize("look", [row, purge, delete, get, browsed])
def test_message_published_in_this_tick_goes_to_an_idle_consumer(
    look: Callable[[Broker, Queue], int],
) -> None:
    with LeveretBroker() as broker, RawClient(*broker.amqp_address) as client:
        channel = client.handshake("/").channel()
        channel.declare("q")
        channel.consume("q", no_ack=True)
        channel.ready("q")  # the tick of the consume has ended
        inner: Any = broker.running

        def publish_and_look() -> int:
            [connection] = inner.amqp.connections
            connection.flow.receive(PUBLISH)
            return look(inner.broker, inner.broker.vhosts["/"].queues["q"])

        assert broker.call(publish_and_look) == 0
        assert channel.deliver().body == b"x"


def test_purge_waits_until_a_new_consumer_may_receive(tmp_path: Path) -> None:
    """The first delivery of a durable queue waits for the disk, and so does who looks at it."""
    settings = in_process_settings(data_dir=tmp_path)
    with ThreadedBroker(settings) as broker, RawClient(*broker.amqp_address) as client:
        channel, consumer = client.handshake("/").channel(), client.channel(2)
        channel.declare("q", durable=True)
        consumer.consume("q", no_ack=True)
        channel.send(PUBLISH, commands.Queue.Purge(queue="q"))
        assert channel.expect(commands.Queue.PurgeOk).message_count == 0
        assert consumer.deliver().body == b"x"
