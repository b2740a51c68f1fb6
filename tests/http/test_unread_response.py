"""A broker stops while a client does not read its response."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pika
import pytest

from tests.http.conftest import Served, serve


def test_stop_closes_the_connection_of_a_client_that_does_not_read(tmp_path: Path) -> None:
    """With warnings as errors, the loop of the broker's thread once did not end."""
    pytest.importorskip("pyarrow")
    with ExitStack() as clients:
        with serve(data_dir=tmp_path) as threaded:
            broker = Served(threaded)
            with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
                channel = connection.channel()
                channel.queue_declare("large", durable=True)
                channel.confirm_delivery()
                for _ in range(96):  # more than sockets buffer
                    properties = pika.BasicProperties(delivery_mode=2)
                    channel.basic_publish("", "large", b"x" * (1 << 19), properties)
            api = clients.enter_context(broker.client())
            stream = api.stream("GET", "/api/history/export?table=messages")
            parts = clients.enter_context(stream).iter_raw()
            next(parts)
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            list(parts)
