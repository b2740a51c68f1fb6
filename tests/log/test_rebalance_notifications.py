"""Group members learn which partitions they gain and lose, with `x-rebalance-notify`."""

from __future__ import annotations

import asyncio
import json

import aio_pika
import pika.exceptions
import pytest

from tests.log.conftest import Reader, declare, numbered, publish, wait_for
from tests.support.polling import wait_until_async

FIRST = {"x_stream_offset": "first"}


class Member(Reader):
    """Receives notifications, which it acks only on request."""

    def __init__(self, home, **options):
        arguments = {"x_group": "G", "x_rebalance_notify": True, **FIRST, **options}
        self.history = []
        """Notifications as (kind, partitions), and records as (partition, offset)."""
        self.bodies_of = []
        self.tags = []
        super().__init__(home, "orders", **{"acks": False, **arguments})

    def _on_record(self, channel, method, properties, body):
        kind = properties.headers.get("x-rebalance")
        if kind is None:
            place = (properties.headers["x-partition"], properties.headers["x-stream-offset"])
            self.history.append(place)
            super()._on_record(channel, method, properties, body)
            return
        assert "x-stream-offset" not in properties.headers
        assert properties.content_type == "application/json"
        notification = json.loads(body)
        self.bodies_of.append(notification)
        self.history.append((kind, notification["partitions"]))
        self.tags.append(method.delivery_tag)

    @property
    def told(self):
        return [event for event in self.history if isinstance(event[1], list)]

    def ack_last(self):
        """Ack the last notification, and wait until the broker has the ack."""
        self.channel.basic_ack(self.tags[-1])
        self.channel.queue_declare("orders", passive=True)


@pytest.fixture
def join(home, channel):
    declare(channel, "orders", partitions=2)
    made: list[Member] = []

    def make(**options):
        made.append(Member(home, **options))
        return made[-1]

    yield make
    for member in made:
        member.close()


def committed(home):
    (group,) = home.hub.logs.groups("/", "orders")
    return [part.committed for part in group.partitions]


def put(channel, count=5):
    for partition in range(2):
        publish(channel, "orders", numbered(count), x_partition=partition)


def test_partitions_are_announced_before_their_records(join, channel):
    put(channel)
    member = join()
    member.read(10)
    assert member.history[0] == ("assigned", [0, 1])
    assert member.bodies_of == [
        {"group": "G", "generation": 1, "partitions": [0, 1], "offsets": {"0": 0, "1": 0}}
    ]


def test_partition_moves_after_its_member_has_acked_the_revocation(join, home, channel):
    put(channel)
    first = join().read(10)
    second = join()
    wait_for(lambda: len(first.told) == 2, first)
    assert first.told[-1] == ("revoked", [1])
    assert second.quiet(0.1).history == []
    publish(channel, "orders", [b"new"], x_partition=1)
    for method, _, _ in first.records:
        first.channel.basic_ack(method.delivery_tag)  # still counts
    first.ack_last()
    assert second.read(1).history == [("assigned", [1]), (1, 5)]
    assert second.bodies_of[0]["offsets"] == {"1": 5}
    assert first.quiet(0.1).told == [("assigned", [0, 1]), ("revoked", [1])]
    assert committed(home) == [5, 5]


def test_acks_after_the_one_of_the_revocation_count_in_the_same_transaction(join, home, channel):
    put(channel)
    first = join().read(10)
    first.channel.tx_select()
    second = join()
    wait_for(lambda: len(first.told) == 2, first)
    first.channel.basic_ack(first.tags[-1])
    for method, _, _ in first.records:
        first.channel.basic_ack(method.delivery_tag)
    assert second.quiet(0.1).history == []  # the transaction is open
    first.channel.tx_commit()
    wait_for(lambda: second.told == [("assigned", [1])], second)
    assert committed(home) == [5, 5]


def test_partition_is_lost_if_it_is_not_released_in_time(join, channel):
    put(channel)
    first = join(x_rebalance_timeout=50).read(10)
    second = join().read(5)
    assert second.history[0] == ("assigned", [1])
    wait_for(lambda: len(first.told) == 3, first)
    assert first.told == [("assigned", [0, 1]), ("revoked", [1]), ("lost", [1])]
    first.ack_last()  # too late, and harmless
    first.channel.tx_select()
    first.channel.basic_ack(0, multiple=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="406"):
        first.channel.tx_commit()


def test_member_that_does_not_want_to_wait_loses_partitions_at_once(join):
    first = join(x_rebalance_timeout=0)
    wait_for(lambda: first.told == [("assigned", [0, 1])], first)
    second = join()
    wait_for(lambda: len(first.told) == 2 and bool(second.told), first, second)
    assert first.told[1:] == [("lost", [1])] and second.told == [("assigned", [1])]


def test_member_that_dies_does_not_hold_up_the_others(join, channel):
    first = join(x_rebalance_timeout=3_600_000)
    wait_for(lambda: bool(first.told), first)
    second = join()
    wait_for(lambda: len(first.told) == 2, first)
    first.die()
    wait_for(lambda: second.told == [("assigned", [0, 1])], second)


def test_released_partition_comes_back_if_the_other_member_has_left(join, home):
    first = join()
    wait_for(lambda: bool(first.told), first)
    second = join()
    wait_for(lambda: len(first.told) == 2, first)
    second.close()
    wait_for(lambda: len(home.hub.logs.groups("/", "orders")[0].members) == 1)
    first.ack_last()
    wait_for(lambda: len(first.told) == 3, first)
    assert first.told[1:] == [("revoked", [1]), ("assigned", [1])]


def test_reset_is_a_loss_and_an_assignment(join, home, channel):
    put(channel)
    member = join().read(10)
    home._running.call(lambda: home.hub.logs.reset("/", "orders", "G", 3, partition=1))
    member.read(12)
    assert member.history[11:] == [("lost", [1]), ("assigned", [1]), (1, 3), (1, 4)]
    assert member.bodies_of[-1]["offsets"] == {"1": 3}


def test_notifications_are_sent_without_credit_and_count_until_they_are_acked(join, channel):
    put(channel)
    first = join(prefetch=1)
    wait_for(lambda: bool(first.told), first)
    assert first.quiet(0.1).records == []
    first.ack_last()
    first.read(1)
    join()
    wait_for(lambda: len(first.told) == 2, first)


def test_records_committed_on_delivery_come_before_the_revocation(join, channel):
    put(channel, 50)
    first = join(x_commit="delivery", prefetch=60)
    second = join(x_commit="delivery")
    wait_for(lambda: len(first.told) == 2, first)
    first.quiet(0.1)
    revoked_at = first.history.index(("revoked", [1]))
    assert all(place[0] == 0 for place in first.history[revoked_at + 1 :])
    first.ack_last()
    assert second.read(1).history[0] == ("assigned", [1])
    assert not set(first.places) & set(second.quiet(0.1).places)


def test_plain_log_has_one_partition(home, channel):
    declare(channel, "orders")
    member = Member(home)
    wait_for(lambda: member.told == [("assigned", [0])], member)


def test_records_cannot_imitate_notifications(home, channel, readers):
    declare(channel, "orders")
    publish(channel, "", [b"{}"], "orders", x_rebalance="revoked", other=1)
    ((_, properties, _),) = readers("orders", **FIRST).read(1).records
    assert properties.headers == {"other": 1, "x-stream-offset": 0}


def test_many_partitions_fit_into_small_frames(home, channel):
    declare(channel, "orders", partitions=300)
    parameters = pika.URLParameters(home.url + "?frame_max=4096")
    with pika.BlockingConnection(parameters) as connection:
        reader = connection.channel()
        reader.basic_qos(prefetch_count=1)
        arguments = {"x-group": "G", "x-rebalance-notify": True}
        _, properties, body = next(reader.consume("orders", arguments=arguments))
        assert properties.headers == {"x-rebalance": "assigned"}
        assert json.loads(body)["partitions"] == list(range(300))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-rebalance-notify": True}, "only members of a group"),
        ({"x-group": "g", "x-rebalance-notify": 1}, "must be true or false"),
        ({"x-group": "g", "x-rebalance-timeout": 1}, "requires x-rebalance-notify"),
        (
            {"x-group": "g", "x-rebalance-notify": True, "x-rebalance-timeout": -1},
            "must be between 0 and 3600000 ms",
        ),
        (
            {"x-group": "g", "x-rebalance-notify": True, "x-rebalance-timeout": "1s"},
            "must be milliseconds",
        ),
    ],
)
def test_invalid_arguments_are_refused(home, channel, connection, arguments, reason):
    declare(channel, "orders")
    refused = connection.channel()
    refused.basic_qos(prefetch_count=1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=reason) as error:
        refused.basic_consume("orders", print, arguments=arguments)
    assert error.value.reply_code == 406


async def count_records(url, seen, notifications):
    """A member with aio-pika's iterator, which handles one delivery after the other."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=5)
        queue = await channel.get_queue("orders")
        arguments = {"x-group": "G", "x-rebalance-notify": True, "x-stream-offset": "first"}
        async with queue.iterator(arguments=arguments) as messages:
            async for message in messages:
                kind = message.headers.get("x-rebalance")
                if kind is not None:
                    notifications.append((kind, json.loads(message.body)["partitions"]))
                else:
                    seen.append(
                        (message.headers["x-partition"], message.headers["x-stream-offset"])
                    )
                await message.ack()


async def test_aio_pika_hands_over_a_partition(home, channel):
    declare(channel, "orders", partitions=2)
    put(channel, 20)
    seen: list[tuple[int, int]] = []
    first: list[tuple[str, list[int]]] = []
    second: list[tuple[str, list[int]]] = []
    async with asyncio.TaskGroup() as members:
        tasks = [members.create_task(count_records(home.url, seen, first))]
        await wait_until_async(lambda: first == [("assigned", [0, 1])])
        tasks.append(members.create_task(count_records(home.url, seen, second)))
        await wait_until_async(lambda: second == [("assigned", [1])])
        put(channel, 10)
        await wait_until_async(lambda: len(seen) >= 60)
        for task in tasks:
            task.cancel()
    assert first[1:] == [("revoked", [1])]
    assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(30)]
