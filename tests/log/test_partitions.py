"""Partitioned logs: the topology of RabbitMQ's super streams, and the choice of partitions."""

from __future__ import annotations

import shutil
from collections import Counter

import pika
import pika.exceptions
import pytest

from leveret.model.partitioning import partition_of
from tests.log.conftest import STREAM, declare, numbered, publish, wait_for


@pytest.fixture
def orders(channel):
    declare(channel, "orders", partitions=3)
    return "orders"


def ends(home, name="orders"):
    return [part.next_offset for part in home.hub.logs.describe("/", name).partitions]


def test_partitioned_log_has_the_topology_of_a_super_stream(orders, home, channel):
    host = home.hub.vhosts["/"]
    exchange = host.exchanges[orders]
    assert (exchange.spec.kind, exchange.spec.durable) == ("direct", True)
    assert exchange.spec.arguments == {"x-super-stream": True}
    bindings = [(b.routing_key, b.destination.name, b.arguments) for b in exchange.bindings]
    assert bindings == [(str(n), f"orders-{n}", {"x-stream-partition-order": n}) for n in range(3)]
    for name in ("orders", "orders-0", "orders-1", "orders-2"):
        assert channel.queue_declare(name, passive=True).method.queue == name


def test_redeclaration_changes_nothing(orders, home, channel, connection):
    publish(channel, orders, [b"x"], "k")
    declare(channel, orders, partitions=3)
    assert sum(ends(home)) == 1
    other = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-partitions"):
        other.queue_declare(orders, durable=True, arguments={**STREAM, "x-partitions": 4})


def test_keys_go_to_the_partition_that_rabbitmq_clients_choose(orders, home, channel, readers):
    keys = [f"key-{number}" for number in range(30)]
    for key in keys:
        publish(channel, orders, [key.encode()], key)
    home.restart()
    other = home.connect()
    fresh = other.channel()
    fresh.confirm_delivery()
    for key in keys:
        publish(fresh, orders, [key.encode()], key)
    reader = readers(orders, x_stream_offset="first").read(60)
    for (partition, _), (method, _, body) in zip(reader.places, reader.records, strict=True):
        assert method.exchange == orders and method.routing_key == body.decode()
        assert partition == partition_of(body, 3)
    other.close()


def test_records_without_a_key_are_distributed_round_robin(orders, home, channel):
    publish(channel, orders, numbered(10))
    assert sorted(ends(home)) == [3, 3, 4]


def test_explicit_partition_header(orders, home, channel):
    publish(channel, orders, numbered(4), "key-1", x_partition=2)
    publish(channel, orders, numbered(1), x_partition=0)
    assert ends(home) == [1, 0, 4]
    for wrong in (3, -1, "2"):
        with pytest.raises(pika.exceptions.UnroutableError):
            publish(channel, orders, [b"x"], "k", x_partition=wrong)


def test_cached_route_respects_the_partition_header(orders, home, channel):
    """The same address with and without `x-partition`, repeatedly."""
    key = next(f"k{n}" for n in range(9) if partition_of(f"k{n}".encode(), 3) == 0)
    for _ in range(3):
        publish(channel, orders, [b"by key"], key)
        publish(channel, orders, [b"by hand"], key, x_partition=1)
    assert ends(home) == [3, 3, 0]


def test_publishing_to_the_queue_name_through_other_exchanges(orders, home, channel):
    publish(channel, "", numbered(6), orders)
    assert ends(home) == [2, 2, 2]
    channel.queue_bind(orders, "amq.topic", "order.#")
    publish(channel, "amq.topic", [b"x", b"y"], "order.7")
    assert ends(home)[partition_of(b"order.7", 3)] == 4
    channel.exchange_bind(orders, "amq.fanout")
    publish(channel, "amq.fanout", [b"z"], "order.7")
    assert ends(home)[partition_of(b"order.7", 3)] == 5


def test_consumers_without_a_group_read_all_partitions(orders, channel, readers):
    publish(channel, orders, numbered(30))
    first = readers(orders, x_stream_offset="first").read(30)
    second = readers(orders, prefetch=2, x_stream_offset="first").read(30)
    for reader in (first, second):
        assert sorted(reader.places) == [(p, o) for p in range(3) for o in range(10)]
        for partition in range(3):
            offsets = [offset for p, offset in reader.places if p == partition]
            assert offsets == list(range(10))


def test_single_partition_can_be_consumed(orders, channel, readers):
    publish(channel, orders, numbered(9))
    assert readers("orders-1", x_stream_offset="first").read(3).places == [(1, 0), (1, 1), (1, 2)]


def test_deleting_a_log_deletes_partitions_exchange_and_files(orders, home, channel):
    publish(channel, orders, numbered(9), "k")
    files = home.data_dir / "logs"
    assert len(list(files.iterdir())) == 3
    channel.queue_delete(orders)
    host = home.hub.vhosts["/"]
    assert not host.queues and orders not in host.exchanges
    wait_for(lambda: not list(files.iterdir()))
    home.restart()
    host = home.hub.vhosts["/"]
    assert not host.queues and orders not in host.exchanges


def test_partition_cannot_be_deleted_alone(orders, connection):
    for delete in (
        lambda channel: channel.queue_delete("orders-1"),
        lambda channel: channel.exchange_delete("orders"),
    ):
        channel = connection.channel()
        with pytest.raises(
            pika.exceptions.ChannelClosedByBroker, match="delete that queue instead"
        ):
            delete(channel)


def test_existing_names_are_rejected(channel, connection):
    channel.exchange_declare("busy", "fanout")
    channel.queue_declare("half-1")
    for name in ("busy", "half"):
        other = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="exists"):
            declare(other, name, partitions=2)
    after = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        after.queue_declare("half-0", passive=True)


def test_partitioned_log_survives_a_restart(orders, home, channel, readers):
    for number in range(50):
        publish(channel, orders, [b"%d" % number], f"k{number % 7}")
    before = ends(home)
    home.restart()
    assert ends(home) == before
    reader = readers(orders, x_stream_offset="first").read(50)
    assert Counter(reader.bodies) == Counter(numbered(50))


def test_definitions_in_any_order_create_the_same_log(home, channel, readers):
    """Exchange, partitions and bindings may exist before the log is declared."""
    channel.exchange_declare("orders", "direct", durable=True, arguments={"x-super-stream": True})
    for number in range(3):
        declare(channel, f"orders-{number}")
        order = {"x-stream-partition-order": number}
        channel.queue_bind(f"orders-{number}", "orders", str(number), order)
    publish(channel, "orders", numbered(6))
    declare(channel, "orders", partitions=3)
    publish(channel, "orders", numbered(6))
    home.restart()
    reader = readers("orders", x_stream_offset="first", x_group="G").read(12)
    assert sorted(reader.places) == [(p, o) for p in range(3) for o in range(4)]


def test_log_with_consumers_cannot_become_a_partition(channel, connection, readers):
    declare(channel, "orders-0")
    readers("orders-0")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="exists"):
        declare(connection.channel(), "orders", partitions=2)


def test_failed_declaration_leaves_no_partitions(home, channel):
    declare(channel, "orders-2", max_age="1D")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-max-age"):
        declare(channel, "orders", partitions=3)
    assert list(home.hub.vhosts["/"].queues) == ["orders-2"]
    assert "orders" not in home.hub.vhosts["/"].exchanges


def test_log_with_a_missing_partition_is_not_recovered(orders, home, channel, caplog):
    directory = home.hub.vhosts["/"].queues["orders-1"].partition.directory
    home.stop()
    shutil.rmtree(directory)
    directory.write_text("not a directory")
    home.start()
    assert set(home.hub.vhosts["/"].queues) == {"orders-0", "orders-2"}
    assert "cannot recover log 'orders-1' in vhost '/': cannot open queue 'orders-1'" in caplog.text
    assert "log 'orders' in vhost '/': only 2 of 3 partitions found" in caplog.text
    directory.unlink()
    home.restart()
    assert len(home.hub.logs.describe("/", "orders").partitions) == 3
